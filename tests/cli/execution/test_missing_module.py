"""A command whose `python -m MODULE` fails because its Python lacks the module."""

import sys

import pytest

from flodl.cli import main

MANIFEST = "commands: {check: {run: python -m absent_tests}}"


def test_a_module_of_the_requirements_that_is_missing_is_named_with_how_to_install_it(project, capfd):
    root = project({"fdl.yml": MANIFEST, "requirements.txt": "flodl\nabsent_tests>=8\n"})
    assert main(["check"]) == 1
    shown = capfd.readouterr().err
    assert "No module named absent_tests" in shown
    install = f"{sys.executable} -m pip install -r {root}/requirements.txt"
    assert shown.endswith(
        f"is not installed for {sys.executable}. Install what this project needs: {install}\n"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"requirements.txt": "flodl\n"},
        {},
        {"requirements.txt": "absent_tests\n", "absent_tests.py": "raise SystemExit(1)\n"},
    ],
    ids=["not required", "no requirements", "another failure"],
)
def test_no_advice_is_given_for_other_failures(project, capfd, files):
    project({"fdl.yml": MANIFEST, **files})
    assert main(["check"]) == 1
    assert "Install what this project needs" not in capfd.readouterr().err
