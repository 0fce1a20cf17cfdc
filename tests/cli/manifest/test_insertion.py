"""A command is added to a manifest, and everything else in the file stays as it is."""

import json
from pathlib import Path

import pytest
import yaml

from flodl.cli.manifest.insertion import add_command
from flodl.core.errors import ManifestError


def add(text, name="new"):
    return add_command(Path("fdl.yml"), text, name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "commands:\n  new:\n"),
        ("# nothing\n", "# nothing\ncommands:\n  new:\n"),
        ("description: x\n# end\n", "description: x\ncommands:\n  new:\n# end\n"),
        ("commands:\ndescription: x\n", "commands:\n  new:\ndescription: x\n"),
        ("commands:\n  a:\n", "commands:\n  a:\n  new:\n"),
        ("commands:\n  a:", "commands:\n  a:\n  new:\n"),
        ("commands:\r\n   a: {run: b}\r\n", "commands:\r\n   a: {run: b}\r\n   new:\r\n"),
        (
            "commands:\n  a:\n    run: [x,\n      y]\nb: 1\n",
            "commands:\n  a:\n    run: [x,\n      y]\n  new:\nb: 1\n",
        ),
        ("commands: {a: , b: }\n", 'commands: {"new": null, a: , b: }\n'),
        ("commands: {}\n", 'commands: {"new": null}\n'),
        ("{commands: {a: }}", '{commands: {"new": null, a: }}'),
        ("{description: x}", '{"commands": {"new": null}, description: x}'),
    ],
)
def test_only_the_command_is_added(before, after):
    assert add(before) == after
    assert add(after) == after


def test_a_json_manifest_stays_json():
    text = json.dumps({"description": "x", "commands": {"a": {"run": "echo"}}}, indent=2) + "\n"
    changed = add(text)
    assert json.loads(changed) == {"description": "x", "commands": {"new": None, "a": {"run": "echo"}}}
    assert changed.replace('    "new": null,\n', "") == text


@pytest.mark.parametrize(
    "text", ["commands: [a]\n", "commands: *x\n", "- a\n", "commands: &c {a: }\nother: *c\n"]
)
def test_other_forms_are_refused(text):
    with pytest.raises(ManifestError):
        add(text)


def test_a_long_manifest_keeps_its_values():
    text = (Path(__file__).parents[3] / "fdl.yml").read_text()
    after = yaml.safe_load(add(text))
    assert after["commands"].pop("new") is None
    assert after == yaml.safe_load(text)
