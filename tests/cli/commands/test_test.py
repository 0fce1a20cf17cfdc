import shutil
import subprocess
from pathlib import Path

import pytest

import flodl
from flodl.cli import main
from flodl.cli.commands import test as command
from flodl.core.errors import SetupError

ROOT = Path(__file__).parents[3]


def make_checkout(folder, monkeypatch, *, test_body):
    """Make a minimal project that passes for the checkout of flodl."""
    (folder / "src/flodl").mkdir(parents=True)
    (folder / "src/flodl/__init__.py").write_text('"""A stand-in."""\n')
    (folder / "tests").mkdir()
    (folder / "tests/test_it.py").write_text(f"def test_it() -> None:\n    {test_body}\n")
    (folder / "pyproject.toml").write_text('[tool.mypy]\nfiles = ["src"]\n')
    monkeypatch.setattr(flodl, "__file__", str(folder / "src/flodl/__init__.py"))
    monkeypatch.setattr(command, "_cores", lambda: 1)
    return folder


def test_outside_a_checkout_it_says_where_the_tests_are(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(flodl, "__file__", str(tmp_path / "lib/site/flodl/__init__.py"))
    assert main(["test"]) == 1
    trouble = capsys.readouterr().err
    assert f"installed in {tmp_path / 'lib'} without its tests" in trouble
    assert "`./fdl test`" in trouble


def test_the_checkout_is_the_one_that_runs():
    assert command.checkout() == ROOT


def test_missing_tools_are_named():
    with pytest.raises(SetupError, match=r"no_such_tool cannot be imported by .*\.\[test\]"):
        command._require("pytest", "no_such_tool")


@pytest.mark.slow
def test_a_failed_stage_does_not_stop_the_others_and_the_end_has_the_counts(
    capfdbinary, monkeypatch, tmp_path
):
    make_checkout(tmp_path, monkeypatch, test_body="assert  True")
    assert main(["test"]) == 1
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["format", "FAILED"],
        ["lint", "ok"],
        ["types", "ok"],
        ["tests", "ok"],
    ]
    assert lines[-1].endswith("1 passed")


@pytest.mark.slow
def test_arguments_go_to_pytest_alone(capfd, monkeypatch, tmp_path):
    make_checkout(tmp_path, monkeypatch, test_body="assert  False")
    assert main(["test", "-k", "nothing_like_it", "-v", "tests"]) == 5
    shown = capfd.readouterr().out
    assert "1 deselected" in shown
    assert "verbose" not in shown
    assert "ruff" not in shown


QUICK_TESTS = """\
import pytest


def test_fast() -> None:
    assert True


@pytest.mark.slow
def test_slow() -> None:
    raise AssertionError


@pytest.mark.gpu
def test_gpu() -> None:
    raise AssertionError
"""


def make_checkout_with_slow_tests(folder, monkeypatch):
    make_checkout(folder, monkeypatch, test_body="pass")
    (folder / "tests/test_it.py").write_text(QUICK_TESTS)
    with (folder / "pyproject.toml").open("a") as file:
        file.write('[tool.pytest.ini_options]\nmarkers = ["slow", "gpu"]\n')


@pytest.mark.slow
def test_quick_checks_everything_but_runs_no_slow_or_gpu_test(capfdbinary, monkeypatch, tmp_path):
    make_checkout_with_slow_tests(tmp_path, monkeypatch)
    assert main(["test", "--quick"]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["format", "ok"],
        ["lint", "ok"],
        ["types", "ok"],
        ["tests", "ok"],
    ]
    assert lines[-1].endswith("1 passed, 2 deselected")


@pytest.mark.slow
def test_quick_with_arguments_runs_only_pytest(capfd, monkeypatch, tmp_path):
    make_checkout_with_slow_tests(tmp_path, monkeypatch)
    assert main(["test", "--quick", "tests", "-v"]) == 0
    shown = capfd.readouterr().out
    assert "1 passed, 2 deselected" in shown
    assert "ruff" not in shown


def test_workers_are_counted_by_core(monkeypatch):
    monkeypatch.setattr(command, "_cores", lambda: 1)
    assert command._parallel() == []
    monkeypatch.setattr(command, "_cores", lambda: 2)
    assert command._parallel() == ["-n", "2", "--dist", "loadfile"]
    monkeypatch.setattr(command, "_cores", lambda: 64)
    assert command._parallel()[1] == "8"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_of_ci_calls_the_same_command(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "fdl").write_text('#!/usr/bin/env bash\necho "called with $@"\nexit 3\n')
    (tmp_path / "fdl").chmod(0o755)
    done = subprocess.run([tmp_path / ".ci/run"], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "called with test\n")


FUZZ_CONFTEST = """\
def pytest_addoption(parser) -> None:
    parser.addoption("--fuzz", type=int)
"""
FUZZ_TEST = """\
def test_it(request) -> None:
    print("cases", request.config.getoption("--fuzz"))
"""


@pytest.mark.slow
def test_fuzz_runs_only_the_fuzz_tests_with_that_many_cases(capfd, monkeypatch, tmp_path):
    make_checkout(tmp_path, monkeypatch, test_body="assert  False")
    (tmp_path / "tests/fuzz").mkdir()
    (tmp_path / "tests/conftest.py").write_text(FUZZ_CONFTEST)
    (tmp_path / "tests/fuzz/test_reader.py").write_text(FUZZ_TEST)
    assert main(["test", "--fuzz", "123", "-s"]) == 0
    shown = capfd.readouterr().out
    assert "cases 123" in shown
    assert "1 passed" in shown


PASSES_ALONE = """from pathlib import Path
    ran = Path(__file__).with_name("ran")
    first = not ran.exists()
    ran.touch()
    assert not first"""


def run_in_parallel(folder, monkeypatch, capfdbinary, *, test_body):
    make_checkout(folder, monkeypatch, test_body=test_body)
    monkeypatch.setattr(command, "_cores", lambda: 2)
    code = main(["test"])
    return code, capfdbinary.readouterr().out.decode().splitlines()


@pytest.mark.slow
def test_a_test_that_fails_beside_others_runs_again_alone_and_is_named(capfdbinary, monkeypatch, tmp_path):
    pytest.importorskip("xdist")
    _, lines = run_in_parallel(tmp_path, monkeypatch, capfdbinary, test_body=PASSES_ALONE)
    assert lines[-1].split()[:2] == ["tests", "ok"]
    assert lines[-1].endswith("1 failed; tests/test_it.py::test_it failed and then passed alone")


@pytest.mark.slow
def test_a_test_that_also_fails_alone_has_failed(capfdbinary, monkeypatch, tmp_path):
    pytest.importorskip("xdist")
    code, lines = run_in_parallel(tmp_path, monkeypatch, capfdbinary, test_body="assert not True")
    assert code == 1
    assert lines[-1].split()[:2] == ["tests", "FAILED"]
    assert lines[-1].endswith("1 failed")
