"""What a command starts: the exact words, the folder, the exit code, and the origin of every value."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from flodl.cli import container, main
from flodl.cli.execution import docker
from flodl.cli.execution.plan import make_plan
from flodl.cli.manifest.loader import load
from flodl.cli.manifest.lookup import requested_action, resolve_target
from flodl.core.errors import ManifestError


def planned(*words, overlay=""):
    return make_plan(resolve_target(load(path_here(), overlay=overlay), words[0], tuple(words[1:])))


def path_here():
    from pathlib import Path

    return Path.cwd() / "fdl.yml"


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
    made = planned("train", "--epochs", "5")
    assert " ".join(made.command) == (
        "tool --mode sync --policy async --backend cpu --anchor auto --max-anchor 200 --overhead-target 0.1"
        " --divergence-threshold 0.05 --max-grad-norm 1.0 --snapshot-timeout 5 --checkpoint-every 7"
        " --progressive false --speed-hint 1:2.5 --partition-ratios 0.5,1 --lr-scale-ratio 1.5 --timeline"
        " --epochs 3 --batch-size 8 --batches 9 --lr 0.0001 --seed 42 --output runs --monitor 3000 --epochs 5"
    )
    assert made.echo == ""
    assert made.table["epochs"] == {"value": "5", "origin": "--epochs"}


def test_a_preset_comes_before_what_is_around_it_field_by_field(project):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": EVERYTHING})
    made = planned("train", "quick", "--lr", "1")
    words = made.command
    assert words[words.index("--epochs") + 1] == "1"
    assert words[words.index("--batch-size") + 1] == "8"
    assert words[-9:] == ["--a", "--d", "two words", "--e", "1,2", "--z-last", "1", "--lr", "1"]
    assert made.echo.startswith("fdl: tool --mode sync")
    assert made.echo.endswith("--a --d 'two words' --e 1,2 --z-last 1 --lr 1")
    assert made.table["epochs"] == {"value": 1, "origin": "train/fdl.yml:23"}
    assert made.table["batch-size"] == {"value": 8, "origin": "train/fdl.yml:19"}


@pytest.fixture
def typed(project):
    """A project whose entry tells what it takes, and prints what it got."""
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


def test_each_source_of_a_value_beats_the_one_before(typed, capfd, monkeypatch):
    """default < manifest < overlay < environment < command line; a preset counts as the manifest."""
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


def test_a_flag_that_is_on_by_itself_is_switched_off_in_words(typed, capfd):
    assert main(["train", "quick"]) == 0
    values, origins = result(capfd)
    assert values == {"lr": 1e-4, "mode": "slow", "compile": False}
    assert origins["mode"] == origins["compile"] == "train/fdl.yml:5"


def test_choices_of_a_preset_are_checked_before_anything_starts(typed, capfd):
    assert main(["train", "wrong"]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "train/fdl.yml:7: options.mode: 'medium' is not allowed. Choose one of fast, slow." in shown.err
    assert main(["train", "quick"]) == 0  # its broken sibling is none of its business


def test_a_wrong_choice_on_the_command_line_ends_with_2(typed, capfd):
    assert main(["train", "quick", "--mode", "medium"]) == 2
    assert "'medium' is not one of 'fast', 'slow'" in capfd.readouterr().err


def test_undeclared_options_of_a_preset_are_refused_if_the_schema_is_strict(project):
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
        ManifestError, match=r"options\.mod: the entry takes no option --mod\. Did you mean 'mode'"
    ):
        planned("train", "quick")


@pytest.mark.parametrize("text", ["descripton: x\ncommands: {train: }", "commands: {train: {pth: train}}"])
def test_a_typo_on_the_way_there_counts_too(project, text):
    project({"fdl.yml": text, "train/fdl.yml": "entry: tool"})
    with pytest.raises(ManifestError, match=r"fdl\.yml:1: .* there is no such key\. Did you mean"):
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
    assert "train/fdl.yml:3: training.bacth_size: there is no such key. Did you mean 'batch_size'" in trouble


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training: {epochs: many}",
            r"fdl\.yml:2: training\.epochs: 'many' cannot stand here\. Write a whole number\.",
        ),
        ("ddp: {speed_hint: {slow_rank: 1}}", r"ddp\.speed_hint: `ratio:` is missing"),
        ("ddp: {speed_hint: 3}", r"ddp\.speed_hint: 3 cannot stand here\. Write a map\."),
        (
            "ddp: {partition_ratios: [1, x]}",
            r"ddp\.partition_ratios: \[1, x\] cannot .* Write a list of numbers",
        ),
        ("ddp: {partition_ratios: 1}", r"ddp\.partition_ratios: 1 cannot .* Write a list of numbers"),
        ("ddp: {progressive: 7}", r"7 cannot stand here\. Write true or false or 'auto'\."),
        (
            "output: {monitor: [1]}",
            r"\[1\] cannot stand here\. Write true or false or a whole number or text",
        ),
        ("compile: '" + "x" * 90 + "'", r"compile: 'x{56}\.\.\. cannot stand here\. Write true or false\."),
        ("ddp: {anchor: often}", r"'often' cannot stand here\. Write a whole number or 'auto'\."),
        ("docker: [a]", r"docker: \[a\] cannot stand here\. Write text\."),
        ("entry: 3", r"entry: 3 cannot stand here\. Write text\."),
        ("description: words\nentri: x", r"fdl\.yml:3: entri: there is no such key\. Did you mean 'entry'"),
    ],
)
def test_values_are_held_to_their_types(project, text, message):
    entry = "" if "entry" in text else "entry: tool"
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": f"{entry or 'arg-name: x'}\n{text}"})
    with pytest.raises(ManifestError, match=message):
        planned("train")


def test_text_is_read_as_the_type_that_is_wanted(project):
    project(
        {"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: tool\ntraining: {epochs: '3', lr: 1}"}
    )
    assert planned("train").command == ["tool", "--epochs", "3", "--lr", "1"]


def test_a_script_runs_in_the_folder_of_its_manifest_and_gives_its_code(project, capfd, monkeypatch):
    root = project({"fdl.yml": "commands: {where: {run: pwd; exit 7}}", "deep/er/x": ""})
    monkeypatch.chdir(root / "deep/er")
    assert main(["where"]) == 7
    assert capfd.readouterr().out == f"{root}\n"


def test_a_script_gets_what_stands_behind_the_dashes(project, capfd):
    project({"fdl.yml": "commands: {say: {run: printf '%s|', append: -- last}}"})
    assert main(["say", "--", "a b", "--no-append", "-v"]) == 0
    assert capfd.readouterr().out == "a b|--no-append|-v|--|last|"


@pytest.mark.parametrize(
    "words",
    [
        ["say", "--no-append"],
        ["--no-append", "say"],
        ["run", "--no-append", "say"],
        ["run", "say", "--no-append"],
        ["-v", "--no-append", "run", "say"],
    ],
)
def test_what_is_appended_can_be_left_out_wherever_that_is_said(project, capfd, words):
    project({"fdl.yml": "commands: {say: {run: printf '%s|', append: -- last}}"})
    assert main([*words, "--", "x"]) == 0
    assert capfd.readouterr().out == "x|"
    assert main(["--no-append", "version"]) == 0  # nothing is appended there anyway


def test_a_child_that_a_signal_ends_gives_1_and_the_signal_is_named(project, capfd):
    project(
        {
            "fdl.yml": "commands: {die: {run: 'kill -9 $$'}, crash: {run: sh c.sh; exit $?}}",
            "c.sh": "kill -SEGV $$",
        }
    )
    assert main(["die"]) == 1
    assert "ended by SIGKILL (signal 9). The system does that when memory runs out" in capfd.readouterr().err
    assert main(["crash"]) == 139
    assert "ended by SIGSEGV (signal 11)." in capfd.readouterr().err


@pytest.fixture
def waiting(project):
    """Start an fdl whose child answers a signal with its last words and code 5."""

    def start(name):
        script = f"trap 'sleep 0.1; echo saved; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
        project({"fdl.yml": "commands: {wait: {run: exec sh wait.sh}}", "wait.sh": script})
        fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "wait"]
        return subprocess.Popen(fdl, stdout=subprocess.PIPE, text=True, start_new_session=True)

    return start


def test_a_request_to_end_reaches_the_child_and_its_code_is_kept(waiting):
    with waiting("TERM") as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "saved\n"
        assert running.wait(20) == 5


def test_an_interrupt_is_the_childs_to_answer(waiting):
    with waiting("INT") as running:
        assert running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGINT)
        assert running.stdout.readline() == "saved\n"
        assert running.wait(20) == 5


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_right_after_the_start_does_not_lose_the_child(project, name):
    script = f"trap 'exit 5' TERM; kill -{name} $PPID; sleep 0.1; exit 5"
    project({"fdl.yml": "commands: {wait: {run: exec sh wait.sh}}", "wait.sh": script})
    fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "wait"]
    assert [subprocess.run(fdl, timeout=30).returncode for _ in range(5)] == [5] * 5


def test_a_program_that_is_not_there_is_named(project, capsys):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: no-such-tool"})
    assert main(["train"]) == 1
    assert "`no-such-tool` is not found" in capsys.readouterr().err


def test_an_entry_starts_a_program_of_its_own_folder(project, capfd):
    root = project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: ./tool.sh x",
            "train/tool.sh": '#!/bin/sh\necho "$PWD $@"\n',
        }
    )
    (root / "train/tool.sh").chmod(0o755)
    assert main(["train", "-v", "a b", "--", "-v"]) == 0
    assert capfd.readouterr().out == f"{root}/train x a b -- -v\n"


COMPOSE = """
services:
  dev:
    volumes: ["cache:/cache", ".:/src/:rw"]
  long:
    volumes: [{type: bind, source: ./, target: /long}]
  bare: {}
"""


@pytest.mark.parametrize(
    ("service", "root"), [("dev", "/src"), ("long", "/long"), ("bare", "/workspace"), ("none", "/workspace")]
)
def test_the_container_root_is_where_the_project_is_mounted(project, service, root):
    folder = project({"docker-compose.yml": COMPOSE})
    assert docker.container_root(folder, service) == root


def test_without_a_compose_file_the_container_root_is_the_usual_one(tmp_path):
    assert docker.container_root(tmp_path, "dev") == "/workspace"


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.delenv("FLODL_VERBOSITY")
    monkeypatch.setattr(container, "inside_container", lambda: False)


def test_an_entry_in_docker_is_this_exact_command(project, stand_in, outside, capfd):
    root = project(
        {
            "fdl.yml": "commands: {train: {path: jobs/train job}}",
            "docker-compose.yml": COMPOSE,
            "jobs/train job/fdl.yml": """
                entry: python train.py
                docker: dev
                commands: {q: {options: {name: it's}}}
            """,
        }
    )
    called = stand_in("docker", code=3)
    assert main(["train", "q", "--lr", "a b"]) == 3
    assert called() == [
        str(root), "compose", "run", "--rm", "-e", "FDL_PROJECT_ROOT=/src", "dev", "bash", "-c",
        "cd '/src/jobs/train job' && python train.py --name 'it'\"'\"'s' --lr 'a b'",
    ]  # fmt: skip
    assert capfd.readouterr().err.startswith("fdl: [dev] python train.py --name ")
    kept = json.loads((root / ".fdl/resolved.json").read_text())
    assert kept["lr"] == {"value": "a b", "origin": "--lr"}


def test_a_script_in_docker_is_this_exact_command(project, stand_in, outside):
    root = project({"fdl.yml": "commands: {t: {run: pytest -q, docker: dev, append: -- -x}}"})
    called = stand_in("docker")
    assert main(["t", "--", "a b"]) == 0
    assert called() == [str(root), "compose", "run", "--rm", "dev", "bash", "-c", "pytest -q 'a b' -- -x"]


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["run", "--monitor"], ["FLODL_MONITOR=1"]),
        (["-vv"], ["FLODL_VERBOSITY=3"]),
        (["--no-ansi"], ["FLODL_COLOR=never", "NO_COLOR=1"]),
        (["-q", "run", "--monitor"], ["FLODL_VERBOSITY=0", "FLODL_MONITOR=1"]),
    ],
)
def test_what_flags_say_reaches_a_container(project, stand_in, outside, flags, variables):
    project(
        {
            "fdl.yml": "commands: {train: , t: {run: pytest, docker: dev}}",
            "train/fdl.yml": "entry: tool\ndocker: dev",
        }
    )
    called = stand_in("docker")
    given = [word for variable in variables for word in ("-e", variable)]
    assert main([*flags, "train"]) == 0
    root = ["-e", "FDL_PROJECT_ROOT=/workspace"]
    end = ["dev", "bash", "-c", "cd /workspace/train && tool"]
    assert called()[1:] == ["compose", "run", "--rm", *root, *given, *end]
    assert main([*flags, "t"]) == 0
    assert called()[1:] == ["compose", "run", "--rm", *given, "dev", "bash", "-c", "pytest"]


def test_inside_a_container_nothing_is_wrapped(project, monkeypatch, capfd):
    monkeypatch.setattr(container, "inside_container", lambda: True)
    project({"fdl.yml": "commands: {t: {run: echo here, docker: dev}}"})
    assert main(["t"]) == 0
    assert capfd.readouterr().out == "here\n"


def test_variables_of_this_machine_do_not_overrule_what_runs_in_a_container(project, outside, monkeypatch):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: tool
                docker: dev
                training: {lr: 1}
                schema: {options: {lr: {type: float, env: TRAIN_LR}}}
            """,
        }
    )
    monkeypatch.setenv("TRAIN_LR", "2")
    made = planned("train")
    assert made.command[-1] == "cd /workspace/train && tool --lr 1"
    assert made.table["lr"]["origin"] == "train/fdl.yml:3"


def test_a_long_table_goes_into_a_file(project, capfd):
    words = ["x" * 1000] * 120
    project({"fdl.yml": "commands: {t: {run: 'echo $FLODL_RESOLVED_CONFIG #'}}"})
    assert main(["t", "--", *words]) == 0
    file = capfd.readouterr().out.strip()
    assert file.endswith(".fdl/resolved.json")
    with open(file) as stream:
        assert json.load(stream)["arguments"]["value"] == words


def test_the_walk_goes_as_deep_as_the_words_do(project):
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
            r"fdl\.yml:1: .*has none\. Write `entry:` there",
        ),
        ({"fdl.yml": "commands: {a: }"}, ["a"], r"command `a`: no fdl\.yml found in .*/a"),
        (
            {"fdl.yml": "commands: {a: }", "a/fdl.yml": "commands: {b: {run: x}}"},
            ["a", "c"],
            "has no `entry:`",
        ),
        ({"fdl.yml": "commands: {a: {run: x}}"}, ["a", "y"], r"use `fdl a -- y`"),
        (
            {"fdl.yml": "commands: {a: {run: x, entry: y}}"},
            ["a"],
            r"'entry' belongs into the fdl\.yml of the folder",
        ),
        (
            {"fdl.yml": "commands: {a: {run: x, dokcer: y}}"},
            ["a"],
            "commands.a.dokcer: there is no such key. Did you mean 'docker'",
        ),
    ],
)
def test_what_cannot_be_run_is_said(project, files, words, message):
    project(files)
    with pytest.raises(ManifestError, match=message):
        planned(*words)


def test_an_overlay_reaches_every_child_and_need_not_be_there(project):
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


def test_an_example_is_used_as_it_is_where_nobody_can_be_asked(project, capfd):
    root = project({"fdl.yml.example": "commands: {t: {run: echo example}}"})
    assert main(["t"]) == 0
    assert capfd.readouterr().out == "example\n"
    assert not (root / "fdl.yml").exists()


@pytest.mark.parametrize(("answer", "copied"), [("\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_an_example_is_offered_as_manifest(project, capfd, monkeypatch, answer, copied):
    root = project({"fdl.yml.example": "commands: {t: {run: echo example}}"})
    typed = io.StringIO(answer)  # without a line: the end of the input
    typed.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["t"]) == 0
    assert (root / "fdl.yml").exists() is copied


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
        ("{n: abc}", "fdl.yml:4: options.n: 'abc' is no float."),
        ("{sizes: [x]}", "fdl.yml:4: options.sizes: 'x' is no int."),
        ("{sizes: [1, 2.5]}", "options.sizes: '2.5' is no int."),
        ("{n: [1, 2]}", "--n takes one value, and this is a list of 2."),
        ("{n: true}", "options.n: true is no float."),
        ("{nn: 1}", "options.nn: the entry takes no option --nn. Did you mean 'n'?"),
    ],
)
def test_what_a_preset_says_is_held_to_what_the_script_takes(job, capfd, options, message):
    job(options)
    assert main(["run", "p"]) == 1
    shown = capfd.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_values_of_a_list_arrive_as_they_are_written(job, capfd):
    values = ["a", "b,c", " d ", "", 'say "hi"', "back\\slash"]
    job("{tags: " + json.dumps(values) + ", save: true}")
    assert main(["run", "p"]) == 0
    assert json.loads(capfd.readouterr().out) == [values, None, []]
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == values
    job("{tags: 'a, b'}")
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == ["a", "b"]


def test_a_default_that_is_a_list_is_not_taken_apart(job, capfd):
    job("{n: 2}")
    assert main(["run", "p"]) == 0
    assert json.loads(capfd.readouterr().out)[0] == ["x", "y,z", " "]
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["tags"]["value"] == ["x", "y,z", " "]


def test_what_would_run_names_arguments_and_wrong_variables(job, capfd, monkeypatch):
    job("{n: 2}")
    assert main(["run", "p", "--dry-run", "--json", "digits.pt"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["data"] == {"value": "digits.pt", "origin": "<data>"}
    assert main(["run", "--dry-run", "--json", "p"]) == 0
    assert json.loads(capfd.readouterr().out)["values"]["data"] == {"value": "none", "origin": "default"}
    monkeypatch.setenv("JOB_N", "many")
    assert main(["run", "p", "--dry-run"]) == 1
    assert "$JOB_N, for --n: 'many' is no float." in capfd.readouterr().err


def test_a_script_that_has_changed_is_asked_before_it_is_refused(job, capfd):
    root = job("{n: 2}")
    assert main(["run", "p"]) == 0
    (root / "job.py").write_text((root / "job.py").read_text().replace("save:", "keep:"))
    os.utime(root / "job.py", (1, 1))  # replaced by an older file
    assert main(["run", "p", "--keep", "x"]) == 0
    assert main(["run", "p", "--save", "x"]) == 2


def test_quiet_keeps_the_echo_of_a_preset_back(job, capfd):
    job("{n: 2}")
    assert main(["run", "p"]) == 0
    assert capfd.readouterr().err.startswith("fdl: python job.py --n 2")
    assert main(["-q", "run", "p"]) == 0
    assert capfd.readouterr().err == ""


def test_docker_started_below_the_project_goes_to_the_right_folder(project, stand_in, outside, monkeypatch):
    root = project(
        {
            "compose.yaml": COMPOSE,
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python train.py
                docker: dev
                commands: {p: {options: {x: 1}}, check: {run: pytest, docker: dev}}
            """,
        }
    )
    called = stand_in("docker")
    monkeypatch.chdir(root / "train")
    assert main(["p"]) == 0
    assert called()[0] == str(root)
    assert called()[-1] == "cd /src/train && python train.py --x 1"
    assert main(["check"]) == 0
    assert (called()[0], called()[-1]) == (str(root), "cd /src/train && pytest")


@pytest.mark.parametrize("name", ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"])
def test_every_name_of_a_compose_file_is_known(project, name):
    root = project({name: COMPOSE, "a/b/x": ""})
    assert docker.project_with_compose(root / "a/b") == root
    assert docker.container_root(root, "dev") == "/src"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commands: {a: {runn: x}}", r"commands\.a\.runn: there is no such key\. Did you mean 'run'"),
        ("comands: {a: {run: x}}", r"comands: there is no such key\. Did you mean 'commands'"),
        (
            "commands: {a: {path: a, training: {lr: 1}}}",
            "has `training:` beside `path:`, where it would not count",
        ),
        ("commands: {a: {run: x, options: {lr: 1}}}", "has `options:` beside `run:`"),
    ],
)
def test_a_mistake_that_hides_a_command_is_what_is_said(project, capfd, text, message):
    project({"fdl.yml": text})
    assert main(["a"]) == 1
    assert re.search(message, capfd.readouterr().err)


def test_a_page_may_be_asked_for(project, capfd):
    project({"fdl.yml": "commands: {a: {run: 'echo \"[$FLODL_MONITOR]\"'}}"})
    assert main(["a"]) == 0
    assert capfd.readouterr().out == "[]\n"
    assert main(["run", "a", "--monitor"]) == 0
    assert capfd.readouterr().out == "[1]\n"


def test_a_program_with_a_monitor_of_its_own_keeps_the_option(project, capfd, monkeypatch):
    text = "entry: echo\nschema: {options: {monitor: {type: bool}}}\ncommands: {p: {output: {monitor: true}}}"
    project({"fdl.yml": text})
    assert main(["-q", "run", "p", "--monitor"]) == 0
    assert capfd.readouterr().out == "--monitor --monitor\n"
    assert not os.environ.get("FLODL_MONITOR")


def test_verbose_may_stand_behind_a_script(project, capfd):
    project({"fdl.yml": "commands: {a: {run: 'echo $FLODL_VERBOSITY'}}"})
    assert main(["a", "--verbose"]) == 0
    assert capfd.readouterr().out == "2\n"
