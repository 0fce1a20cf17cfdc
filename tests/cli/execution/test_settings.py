"""The options that a manifest sets: their order, precedence, checks and origins."""

import json
import os

import pytest

from flodl.cli import main

from .plans import planned

EVERYTHING = """
    entry: tool
    ddp:
      timeline: true
      lr_scale_ratio: 1.5
      partition_ratios: [0.5, 1]
      speed_hint: {slow_rank: 1, ratio: 2.5}
      progressive: false
      checkpoint_every: 7
      snapshot_timeout: 5
      max_grad_norm: 1.0
      max_batch_diff:
      divergence_threshold: 0.05
      overhead_target: 0.1
      max_anchor: 200
      anchor: auto
      backend: cpu
      policy: async
      mode: sync
    training: {seed: 42, lr: 1e-4, batches_per_epoch: 9, batch_size: 8, epochs: 3}
    output: {monitor: 3000, dir: runs, timeline: true}
    commands:
      quick:
        training: {epochs: 1}
        options: {z_last: 1, a: true, b: false, c: , d: two words, e: [1, 2]}
"""


def test_sections_become_options_in_a_fixed_order(project):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": EVERYTHING})
    plan = planned("train", "--epochs", "5")
    assert " ".join(plan.command) == (
        "tool --mode sync --policy async --backend cpu --anchor auto --max-anchor 200 --overhead-target 0.1"
        " --divergence-threshold 0.05 --max-grad-norm 1.0 --snapshot-timeout 5 --checkpoint-every 7"
        " --progressive false --speed-hint 1:2.5 --partition-ratios 0.5,1 --lr-scale-ratio 1.5 --timeline"
        " --epochs 3 --batch-size 8 --batches 9 --lr 0.0001 --seed 42 --output runs --monitor 3000 --epochs 5"
    )
    assert plan.echo == ""
    assert plan.table["epochs"] == {"value": "5", "origin": "--epochs"}


def test_a_preset_overrides_the_enclosing_values_one_by_one(project):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": EVERYTHING})
    plan = planned("train", "quick", "--lr", "1")
    words = plan.command
    assert words[words.index("--epochs") + 1] == "1"
    assert words[words.index("--batch-size") + 1] == "8"
    assert words[-9:] == ["--a", "--d", "two words", "--e", "1,2", "--z-last", "1", "--lr", "1"]
    assert plan.echo.startswith("fdl: tool --mode sync")
    assert plan.echo.endswith("--a --d 'two words' --e 1,2 --z-last 1 --lr 1")
    assert plan.table["epochs"] == {"value": 1, "origin": "train/fdl.yml:23"}
    assert plan.table["batch-size"] == {"value": 8, "origin": "train/fdl.yml:19"}


@pytest.fixture
def typed(project):
    """A project whose entry has a schema and prints its values."""
    return project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python train.py
                training: {lr: 1e-4}
                commands:
                  quick:
                    options: {mode: slow, compile: false}
                  wrong:
                    options: {mode: medium}
            """,
            "fdl.ci.yml": "",
            "train/fdl.ci.yml": "training: {lr: 2e-4}",
            "train/train.py": """
                import json, os
                from dataclasses import dataclass
                from typing import Literal
                from flodl.cli import Args, option

                @dataclass
                class Train:
                    lr: float = option(0.5, env="TRAIN_LR")
                    mode: Literal["fast", "slow"] = "fast"
                    compile: bool = True

                args = Args(Train).parse()
                print(json.dumps({"lr": args.lr, "mode": args.mode, "compile": args.compile}))
                print(os.environ["FLODL_RESOLVED_CONFIG"])
            """,
        }
    )


def result(capfd):
    values, table = capfd.readouterr().out.splitlines()
    origins = {name: entry["origin"] for name, entry in json.loads(table).items()}
    for name, value in json.loads(values).items():
        assert json.loads(table)[name]["value"] == value
    return json.loads(values), origins


def test_each_source_overrides_the_one_before(typed, capfd, monkeypatch):
    """default < manifest < overlay < environment < command line; a preset is part of the manifest."""
    (typed / "train/fdl.yml").write_text("entry: python train.py\n")
    assert main(["train"]) == 0
    values, origins = result(capfd)
    assert (values["lr"], origins["lr"]) == (0.5, "default")

    (typed / "train/fdl.yml").write_text("entry: python train.py\ntraining: {lr: 1e-4}\n")
    assert main(["train"]) == 0
    values, origins = result(capfd)
    assert (values["lr"], origins["lr"]) == (1e-4, "train/fdl.yml:2")

    assert main(["--env", "ci", "train"]) == 0
    values, origins = result(capfd)
    assert (values["lr"], origins["lr"]) == (2e-4, "train/fdl.ci.yml:1")

    monkeypatch.setenv("TRAIN_LR", "3e-4")
    assert main(["--env", "ci", "train"]) == 0
    values, origins = result(capfd)
    assert (values["lr"], origins["lr"]) == (3e-4, "$TRAIN_LR")

    assert main(["--env", "ci", "train", "--lr", "4e-4"]) == 0
    values, origins = result(capfd)
    assert (values["lr"], origins["lr"]) == (4e-4, "--lr")


def test_a_flag_that_is_on_by_default_is_switched_off_explicitly(typed, capfd):
    assert main(["train", "quick"]) == 0
    values, origins = result(capfd)
    assert values == {"lr": 1e-4, "mode": "slow", "compile": False}
    assert origins["mode"] == origins["compile"] == "train/fdl.yml:5"


def test_the_choices_of_a_preset_are_checked_before_anything_starts(typed, capfd):
    assert main(["train", "wrong"]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "train/fdl.yml:7: options.mode: 'medium' is not allowed. Choose one of fast, slow." in shown.err
    assert main(["train", "quick"]) == 0  # a mistake in another preset does not matter


def test_an_invalid_choice_on_the_command_line_exits_with_2(typed, capfd):
    assert main(["train", "quick", "--mode", "medium"]) == 2
    assert "'medium' is not one of 'fast', 'slow'" in capfd.readouterr().err


TYPED = """
    import json, os, sys
    from dataclasses import dataclass, field
    from pathlib import Path
    from typing import Optional
    from flodl.cli import Args, argument, option

    @dataclass
    class Job:
        data: Path = argument(Path("none"))
        n: float = option(1.0, env="JOB_N")
        sizes: list[int] = field(default_factory=list)
        tags: list[str] = field(default_factory=lambda: ["x", "y,z", " "])
        maybe: Optional[list[int]] = None
        save: str | None = option(None, bare="runs")

    args = Args(Job).parse()
    print(json.dumps([args.tags, args.maybe, args.sizes]))
"""


@pytest.fixture
def job(project):
    def make(options):
        text = f"entry: python job.py\ncommands:\n  p:\n    options: {options}\n"
        return project({"fdl.yml": text, "job.py": TYPED})

    return make


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{n: abc}", "fdl.yml:4: options.n: 'abc' is not a valid float."),
        ("{sizes: [x]}", "fdl.yml:4: options.sizes: 'x' is not a valid int."),
        ("{sizes: [1, 2.5]}", "options.sizes: '2.5' is not a valid int."),
        ("{n: [1, 2]}", "--n takes one value, not a list of 2."),
        ("{n: true}", "options.n: true is not a valid float."),
        ("{nn: 1}", "options.nn: the entry has no option --nn. Did you mean 'n'?"),
    ],
)
def test_the_values_of_a_preset_are_checked_against_the_script(job, capfd, options, message):
    job(options)
    assert main(["run", "p"]) == 1
    shown = capfd.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_list_values_reach_the_script_unchanged(job, capfd):
    values = ["a", "b,c", " d ", "", 'say "hi"', "back\\slash"]
    job("{tags: " + json.dumps(values) + ", save: true}")
    assert main(["run", "p"]) == 0
    assert json.loads(capfd.readouterr().out) == [values, None, []]
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == values
    job("{tags: 'a, b'}")
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == ["a", "b"]


def test_a_default_list_is_not_split(job, capfd):
    job("{n: 2}")
    assert main(["run", "p"]) == 0
    assert json.loads(capfd.readouterr().out)[0] == ["x", "y,z", " "]
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == ["x", "y,z", " "]


def test_a_dry_run_shows_arguments_and_refuses_wrong_variables(job, capfd, monkeypatch):
    job("{n: 2}")
    assert main(["run", "p", "--dry-run", "--json", "digits.pt"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["data"] == {"value": "digits.pt", "origin": "<data>"}
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["data"] == {"value": "none", "origin": "default"}
    monkeypatch.setenv("JOB_N", "many")
    assert main(["run", "p", "--dry-run"]) == 1
    assert "$JOB_N, for --n: 'many' is not a valid float." in capfd.readouterr().err


def test_a_changed_script_is_asked_again_before_a_value_is_refused(job, capfd):
    root = job("{n: 2}")
    assert main(["run", "p"]) == 0
    (root / "job.py").write_text((root / "job.py").read_text().replace("save:", "keep:"))
    os.utime(root / "job.py", (1, 1))  # replaced by an older file
    assert main(["run", "p", "--keep", "x"]) == 0
    assert main(["run", "p", "--save", "x"]) == 2


def test_quiet_suppresses_the_echo_of_a_preset(job, capfd):
    job("{n: 2}")
    assert main(["run", "p"]) == 0
    assert capfd.readouterr().err.startswith("fdl: python job.py --n 2")
    assert main(["-q", "run", "p"]) == 0
    assert capfd.readouterr().err == ""


NUMBERS = """
    entry: tool
    schema:
      options:
        name: {type: string}
        where: {type: path}
        names: {type: "list[string]"}
        choice: {type: string, choices: ["1.10", "1.1"]}
        count: {type: int}
        rate: {type: float}
    commands:
      run: {options: {name: NUMBER, where: NUMBER, names: [NUMBER, a], choice: 1.10, count: 0x1F, rate: 1e5}}
"""


@pytest.mark.parametrize("number", ["1.10", "007", "1e5", "0x1F", "1.0", "+3", ".inf"])
def test_a_number_reaches_an_option_for_text_as_it_is_written(project, number):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": NUMBERS.replace("NUMBER", number)})
    plan = planned("train", "run")
    words = dict(zip(plan.command[1::2], plan.command[2::2]))
    assert words["--name"] == words["--where"] == plan.table["name"]["value"] == number
    assert words["--names"] == f"{number},a"
    assert (words["--choice"], words["--count"], float(words["--rate"])) == ("1.10", "31", 1e5)
    assert plan.table["count"]["value"] == 31
    assert main(["config", "lint"]) == 0


def test_a_number_for_an_unknown_option_keeps_its_digits_but_not_the_notation_of_yaml(project):
    options = "{a: 1.10, b: 007, c: 0x1F, d: .inf, e: [1.10, 0o17]}"
    manifest = f"entry: tool\ncommands: {{run: {{options: {options}}}}}"
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": manifest})
    assert planned("train", "run").command[1:] == (
        ["--a", "1.10", "--b", "007", "--c", "31", "--d", "inf", "--e", "1.10,15"]
    )
