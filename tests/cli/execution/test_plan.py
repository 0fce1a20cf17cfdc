"""Plans: the exact words that a command would run, and errors found before it starts."""

import re

import pytest

from flodl.cli import main
from flodl.cli.manifest.loader import load
from flodl.cli.manifest.lookup import requested_action, resolve_target
from flodl.core.errors import ManifestError

from .plans import path_here, planned


def test_a_strict_schema_refuses_unknown_options_of_a_preset(project):
    files = {
        "fdl.yml": "commands: {train: }",
        "train/fdl.yml": """
            entry: tool
            schema: {options: {mode: {type: string}}, strict: true}
            commands: {quick: {options: {mod: x}}}
        """,
    }
    project(files)
    with pytest.raises(
        ManifestError, match=r"options\.mod: the entry has no option --mod\. Did you mean 'mode'"
    ):
        planned("train", "quick")


@pytest.mark.parametrize("text", ["descripton: x\ncommands: {train: }", "commands: {train: {pth: train}}"])
def test_a_typo_in_a_parent_manifest_is_an_error(project, text):
    project({"fdl.yml": text, "train/fdl.yml": "entry: tool"})
    with pytest.raises(ManifestError, match=r"fdl\.yml:1: .* unknown key\. Did you mean"):
        planned("train")


def test_a_typo_fails_before_anything_is_started(project, capfd):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: python -c 'import torch'\ntraining:\n  bacth_size: 3\n",
        }
    )
    assert main(["train"]) == 1
    trouble = capfd.readouterr().err
    assert "train/fdl.yml:3: training.bacth_size: unknown key. Did you mean 'batch_size'" in trouble


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training: {epochs: many}",
            r"fdl\.yml:2: training\.epochs: 'many' is not allowed here\. Expected an integer of at least 1\.",
        ),
        (
            "training: {epochs: 0}",
            r"fdl\.yml:2: training\.epochs: 0 is not allowed here\. Expected an integer of at least 1\.",
        ),
        ("training: {lr: -1}", r"training\.lr: -1 is not allowed here\. Expected a number of at least 0\."),
        ("ddp: {speed_hint: {slow_rank: 1}}", r"ddp\.speed_hint: `ratio:` is missing"),
        ("ddp: {speed_hint: 3}", r"ddp\.speed_hint: 3 is not allowed here\. Expected a map\."),
        (
            "ddp: {partition_ratios: [1, x]}",
            r"ddp\.partition_ratios: \[1, x\] is not allowed .* Expected a list of numbers",
        ),
        (
            "ddp: {partition_ratios: 1}",
            r"ddp\.partition_ratios: 1 is not allowed .* Expected a list of numbers",
        ),
        ("ddp: {progressive: 7}", r"7 is not allowed here\. Expected true or false or 'auto'\."),
        (
            "output: {monitor: [1]}",
            r"\[1\] is not allowed here\. Expected true or false or an integer or text",
        ),
        (
            "compile: '" + "x" * 90 + "'",
            r"compile: 'x{56}\.\.\. is not allowed here\. Expected true or false\.",
        ),
        ("ddp: {anchor: often}", r"'often' is not allowed here\. Expected an integer or 'auto'\."),
        ("docker: [a]", r"docker: \[a\] is not allowed here\. Expected text\."),
        ("entry: 3", r"entry: 3 is not allowed here\. Expected text\."),
        ("description: words\nentri: x", r"fdl\.yml:3: entri: unknown key\. Did you mean 'entry'"),
    ],
)
def test_values_of_the_wrong_type_are_refused(project, text, message):
    entry = "" if "entry" in text else "entry: tool"
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": f"{entry or 'arg-name: x'}\n{text}"})
    with pytest.raises(ManifestError, match=message):
        planned("train")


def test_an_integer_is_accepted_where_a_number_is_expected_and_text_is_not(project):
    files = {"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: tool\ntraining: {epochs: 3, lr: 1}"}
    project(files)
    assert planned("train").command == ["tool", "--epochs", "3", "--lr", "1"]
    project({**files, "train/fdl.yml": files["train/fdl.yml"].replace("3", "'3'")})
    with pytest.raises(ManifestError, match=r"training\.epochs: '3' is not allowed here.*Remove the quotes"):
        planned("train")


def test_commands_are_looked_up_at_any_depth(project):
    project(
        {
            "fdl.yml": "commands: {a: }",
            "a/fdl.yml": "commands: {b: {path: ../elsewhere}}",
            "elsewhere/fdl.yml": "entry: tool\ncommands: {p: {options: {x: 1}}}",
        }
    )
    assert planned("a", "b", "p", "--y").command == ["tool", "--x", "1", "--y"]
    target = resolve_target(load(path_here()), "a", ("b", "p", "--help"))
    assert (target.title, requested_action(target)) == ("fdl a b p", "help")
    assert requested_action(resolve_target(load(path_here()), "a", ())) == "help"
    assert requested_action(resolve_target(load(path_here()), "a", ("b", "--refresh-schema"))) == "refresh"
    assert requested_action(resolve_target(load(path_here()), "a", ("b", "--", "--help"))) == "entry"


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        (
            {"fdl.yml": "commands: {a: {options: {x: 1}}}"},
            ["a"],
            r"fdl\.yml:1: .*has none\. Add `entry:`",
        ),
        ({"fdl.yml": "commands: {a: }"}, ["a"], r"command `a`: no fdl\.yml found in .*/a"),
        (
            {"fdl.yml": "commands: {a: }", "a/fdl.yml": "commands: {b: {run: x}}"},
            ["a", "c"],
            "has no `entry:`",
        ),
        ({"fdl.yml": "commands: {a: {run: x}}"}, ["a", "y"], r"Use `fdl a -- y`"),
        (
            {"fdl.yml": "commands: {a: {run: x, entry: y}}"},
            ["a"],
            r"'entry' belongs in the fdl\.yml of the folder",
        ),
        (
            {"fdl.yml": "commands: {a: {run: x, dokcer: y}}"},
            ["a"],
            "commands.a.dokcer: unknown key. Did you mean 'docker'",
        ),
    ],
)
def test_a_command_that_cannot_run_is_an_error(project, files, words, message):
    project(files)
    with pytest.raises(ManifestError, match=message):
        planned(*words)


def test_an_overlay_applies_to_child_manifests_and_may_be_missing_there(project):
    project(
        {
            "fdl.yml": "commands: {a: , b: }",
            "fdl.ci.yml": "",
            "a/fdl.yml": "entry: tool",
            "a/fdl.ci.yml": "entry: other",
            "b/fdl.yml": "entry: tool",
        }
    )
    assert planned("a", overlay="ci").command == ["other"]
    assert planned("b", overlay="ci").command == ["tool"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commands: {a: {runn: x}}", r"commands\.a\.runn: unknown key\. Did you mean 'run'"),
        ("comands: {a: {run: x}}", r"comands: unknown key\. Did you mean 'commands'"),
        (
            "commands: {a: {path: a, training: {lr: 1}}}",
            "has `training:` next to `path:`, where it has no effect",
        ),
        ("commands: {a: {run: x, options: {lr: 1}}}", "has `options:` next to `run:`"),
    ],
)
def test_a_mistake_that_hides_a_command_is_reported(project, capfd, text, message):
    project({"fdl.yml": text})
    assert main(["a"]) == 1
    assert re.search(message, capfd.readouterr().err)


LISTS = """
    entry: tool
    schema: {options: {sizes: {type: "list[int]"}, lr: {type: float}}}
    commands: {quick: {options: {sizes: [3, 4], lr: 0.5}}}
"""


@pytest.mark.parametrize(
    ("words", "expected", "sizes"),
    [
        ([], ["--lr", "0.5", "--sizes", "3,4"], [3, 4]),
        (["--sizes", "7"], ["--lr", "0.5", "--sizes", "7"], [7]),
        (["--sizes", "7,8", "--sizes=9"], ["--lr", "0.5", "--sizes", "7,8", "--sizes=9"], [7, 8, 9]),
        (["--sizes="], ["--lr", "0.5", "--sizes="], []),
        (["--lr", "1"], ["--lr", "0.5", "--sizes", "3,4", "--lr", "1"], [3, 4]),
    ],
)
def test_a_list_on_the_command_line_replaces_that_of_the_preset(project, words, expected, sizes):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": LISTS})
    plan = planned("train", "quick", *words)
    assert plan.command == ["tool", *expected]
    assert plan.table["sizes"]["value"] == sizes
