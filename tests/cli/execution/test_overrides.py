"""Options that are set more than once: by two spellings, in two sections, and by an overlay."""

import pytest

from flodl.cli import main

from .plans import planned

BASE = """
entry: tool
training:
  batch_size: 8
  optimizer: {weight_decay: 0.1}
commands:
  run:
    options: {max_length: 16, batch_size: 4, clip: {max_norm: 1}}
"""


def options_of(plan):
    words = plan.command[1:]
    return dict(zip(words[::2], words[1::2]))


@pytest.mark.parametrize(
    ("overlay", "flag", "value"),
    [
        ("options: {max-length: 32}", "max-length", 32),
        ("options: {clip: {max-norm: 2}}", "clip.max-norm", 2),
        ("training: {optimizer: {weight-decay: 0.2}}", "optimizer.weight-decay", 0.2),
        ("training: {batch_size: 64}", "batch-size", 64),
    ],
)
def test_an_overlay_wins_with_the_other_spelling_or_in_the_other_section(project, overlay, flag, value):
    project({"fdl.yml": BASE, "fdl.big.yml": f"commands:\n  run:\n    {overlay}\n"})
    plan = planned("run", overlay="big")
    assert plan.table[flag] == {"value": value, "origin": "fdl.big.yml:3"}
    assert options_of(plan)[f"--{flag}"] == str(value)
    assert plan.command.count(f"--{flag}") == 1


def test_a_file_wins_over_the_one_that_it_inherits_from_with_the_other_spelling(project):
    project(
        {"base.yml": BASE, "fdl.yml": "inherit-from: base.yml\ntraining: {optimizer: {weight-decay: 1}}\n"}
    )
    assert planned("run").table["optimizer.weight-decay"] == {"value": 1, "origin": "fdl.yml:2"}


def test_a_null_deletes_an_option_with_the_other_spelling(project):
    project({"fdl.yml": BASE, "fdl.big.yml": "commands: {run: {options: {max-length: }}}"})
    assert "max-length" not in planned("run", overlay="big").table


def test_a_preset_overrides_the_value_around_it_with_a_single_option(project):
    project({"fdl.yml": BASE})
    plan = planned("run")
    assert (plan.command.count("--batch-size"), plan.table["batch-size"]["value"]) == (1, 4)


def test_keys_of_a_dict_option_are_not_names_of_options(project, capsys):
    schema = "schema: {options: {weights: {type: 'dict[float]'}}}"
    options = "commands: {run: {options: {weights: {big_cat: 1, big-cat: 2}}}}"
    project({"fdl.yml": f"entry: sh\n{schema}\n{options}\n", "fdl.a.yml": "description: d\n"})
    assert planned("run", overlay="a").table["weights"]["value"] == {"big_cat": 1, "big-cat": 2}
    assert main(["config", "lint"]) == 0


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        (
            "options: {max_length: 1, max-length: 1}",
            "options.max-length: commands.run.options.max_length in line 4 sets the same option",
        ),
        (
            "training: {o: {max_norm: 1, max-norm: 2}}",
            "training.o.max-norm: commands.run.training.o.max_norm in line 4 sets the same option",
        ),
        (
            "{training: {seed: 1}, options: {seed: 2}}",
            "options.seed: commands.run.training.seed in line 4 sets the same option",
        ),
    ],
)
def test_one_file_cannot_set_an_option_twice_in_a_preset(project, capsys, preset, told):
    project({"fdl.yml": f"entry: sh\ncommands:\n  run:\n    {preset}\n"})
    for words in (["config", "lint"], ["run", "run"]):
        assert main(words) == 1
        assert f"fdl.yml:4: commands.run.{told}, --" in capsys.readouterr().err


def test_the_same_value_in_two_sections_is_accepted(project, capsys):
    project({"fdl.yml": "entry: sh\ncommands: {run: {training: {seed: 1}, options: {seed: 1}}}\n"})
    assert planned("run").command == ["sh", "--seed", "1"]


def test_a_note_says_where_options_of_a_preset_override_a_value_of_an_overlay(project, capsys):
    overlay = "training:\n  batch_size: 64\n  optimizer: {weight-decay: 0.5}\n"
    preset = "    options: {batch-size: 4, optimizer: {weight_decay: 1}}\n"
    project({"fdl.yml": f"entry: sh\ncommands:\n  run:\n{preset}", "fdl.big.yml": overlay})
    expected = [
        "fdl.big.yml:2: training.batch_size is overridden by commands.run at fdl.yml:4. "
        "To change it, set commands.run.options.batch-size.",
        "fdl.big.yml:3: training.optimizer.weight-decay is overridden by commands.run at fdl.yml:4. "
        "To change it, set commands.run.options.optimizer.weight_decay.",
    ]
    assert list(planned("run", overlay="big").notes) == expected
    assert main(["config", "lint"]) == 0
    shown = capsys.readouterr().err
    assert all(note in shown for note in expected)


def test_a_section_that_only_has_the_name_of_an_option_deletes_nothing(project):
    base = "entry: sh\ncommands: {run: {ddp: {timeline: true}}}\n"
    project({"fdl.yml": base, "fdl.a.yml": "commands: {run: {output: {timeline: true}}}"})
    assert planned("run", overlay="a").command == ["sh", "--timeline"]


def test_a_sweep_over_both_spellings_is_an_error(project, capsys):
    over = "sweep: {over: {batch_size: [1, 2], batch-size: [3]}}"
    project({"fdl.yml": f"entry: sh\n{over}\ncommands: {{run: {{training: {{seed: 1}}}}}}\n"})
    assert main(["sweep", "--dry-run"]) == 1
    assert (
        "sweep.over.batch-size: fdl.yml:2 sweeps over the same option, --batch-size."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (
            'map: {type: "dict[int]"}',
            'map: {"b=c": 1}',
            "commands.p.options.map: the key 'b=c' cannot be passed",
        ),
        (
            'map: {type: "dict[int]"}',
            'map: {" b": 1}',
            "commands.p.options.map: the key ' b' cannot be passed",
        ),
        ("", '"b=c": 1', "the name of an option cannot contain `=`"),
        ("", 'map: {"b=c": 1}', "the name of an option cannot contain `=`"),
    ],
)
def test_a_key_that_the_command_line_would_split_is_an_error_with_its_line(
    project, capfd, schema, options, message
):
    schema_line = f"schema: {{options: {{{schema}}}}}" if schema else "training: {}"
    project({"fdl.yml": f"entry: echo\n{schema_line}\ncommands:\n  p:\n    options:\n      {options}"})
    assert main(["p"]) == 1
    error = capfd.readouterr().err
    assert "fdl.yml:6: " in error
    assert message in error
    assert main(["config", "lint"]) == 1
    output = capfd.readouterr()
    assert message in output.out + output.err
