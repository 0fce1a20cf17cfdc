"""Numbers are shown as the program receives them."""

import json

import pytest

from flodl.cli import main

MANIFEST = """
entry: sh
%s
training:
  lr: 1e-2
  model: {version: 1.10}
commands:
  run:
    options: {tag: 007, seed: 007, items: [1.10, 2], weights: {cat: 1.10}, mask: 0x1F}
"""
SCHEMA = (
    "schema: {options: {tag: {type: string}, seed: {type: int}, items: {type: 'list[string]'}, "
    "weights: {type: 'dict[float]'}, mask: {type: string}}}"
)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (
            "",
            [
                "lr: 0.01",
                "version: 1.10",
                "tag: 007",
                "seed: 007",
                "items: [1.10, 2]",
                "cat: 1.10",
                "mask: 31",
            ],
        ),
        (
            SCHEMA,
            [
                "lr: 0.01",
                "version: 1.10",
                "tag: 007",
                "seed: 7",
                "items: [1.10, 2]",
                "cat: 1.1",
                "mask: 0x1F",
            ],
        ),
    ],
    ids=["unknown options", "known options"],
)
def test_config_show_prints_numbers_as_the_program_receives_them(project, capsys, schema, shown):
    project({"fdl.yml": MANIFEST % schema})
    assert main(["config", "show"]) == 0
    lines = [line.split("  #")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line not in lines] == []


def test_the_json_of_config_show_has_the_number_and_its_text(project, capsys):
    project({"fdl.yml": MANIFEST % ""})
    assert main(["config", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["commands.run.options.tag"] == {"value": 7, "origin": "fdl.yml:8", "written": "007"}
    assert found["training.lr"] == {"value": 0.01, "origin": "fdl.yml:4"}


def test_a_dry_run_and_the_help_show_an_unknown_option_as_it_is_passed(project, capsys):
    project({"fdl.yml": MANIFEST % ""})
    assert main(["run", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "--tag 007" in shown
    assert "\ntag: 007 " in shown
    assert main(["run", "run", "--help"]) == 0
    assert "007  (fdl.yml:8)" in capsys.readouterr().out
