"""The pitfalls of the reference implementation, and the behaviour of flodl instead.

The numbers are those of the list of divergences. Two are missing: 4 is about `add`, a command that does not
exist yet; 16, the update check, needs a terminal and pip and is in updates/test_notice.py.
"""

import json
from dataclasses import make_dataclass

import pytest

from flodl.cli import Args, container, main, option
from flodl.core.errors import ArgsError


def test_1_an_entry_in_a_command_of_an_overlay_is_an_error_that_names_the_right_file(project, capsys):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "fdl.ci.yml": "commands: {train: {path: train, entry: x}}",
            "train/fdl.yml": "entry: echo",
        }
    )
    assert main(["--env", "ci", "config", "lint"]) == 1
    errors = capsys.readouterr().err
    assert "fdl.ci.yml:1: commands.train.entry: unknown key" in errors
    assert "belongs in the fdl.yml of the folder that `path:` names" in errors


def test_2_a_reserved_short_name_is_an_error_at_definition():
    with pytest.raises(ArgsError, match=r"at 'Job\.epochs': -e is reserved"):
        Args(make_dataclass("Job", [("epochs", int, option(1, short="e"))]))


def test_3_short_names_are_never_generated_and_no_variable_adds_words(monkeypatch, project, capfd):
    monkeypatch.setenv("FDL_EXTRA_ARGS", "surprise")
    project({"fdl.yml": "commands: {say: {run: echo said}}"})
    assert main(["say"]) == 0
    assert capfd.readouterr().out == "said\n"
    with pytest.raises(SystemExit):
        Args(make_dataclass("Job", [("lr", float, 0.1)])).parse(["-l", "1"])


def test_5_the_json_report_lists_gpus_under_gpus(monkeypatch, tmp_path, capsys):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, 143771, 580.95.05, 9.0'\n")
    smi.chmod(0o755)
    (tmp_path / "torch.py").write_text("raise ImportError('not needed here')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    assert main(["diagnose", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [gpu["name"] for gpu in report["gpus"]] == ["NVIDIA H200"]
    assert "cuda" not in report


@pytest.mark.parametrize(
    "flag", ["-v", "-q", "--ansi", "--no-ansi", "--env=x", "--help", "--no-append", "--refresh-schema"]
)
def test_6_words_after_the_dashes_belong_to_the_program(project, capfd, flag):
    project({"fdl.yml": "commands: {say: {run: echo}, train: }", "train/fdl.yml": "entry: echo"})
    assert main(["say", "--", flag]) == 0
    assert main(["train", "--", flag]) == 0
    assert capfd.readouterr().out == f"{flag}\n-- {flag}\n"


def test_7_an_unreadable_manifest_is_reported_and_help_still_works(project, capsys):
    project({"fdl.yml": "commands:\n  a: [\n"})
    assert main(["a"]) == 1
    assert "fdl.yml:2: " in capsys.readouterr().err
    assert main(["--help"]) == 0
    shown = capsys.readouterr()
    assert "quickstart" in shown.out
    assert "fdl.yml:2: " in shown.err
    assert main(["version"]) == 0


@pytest.mark.parametrize(
    "text", ["comands: {}", "commands: {a: {runs: x}}", "commands: {a: {run: echo, appnd: x}}"]
)
def test_8_an_unknown_key_is_an_error_with_the_nearest_name(project, capsys, text):
    project({"fdl.yml": text})
    assert main(["config", "lint"]) == 1
    assert "unknown key. Did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--help"], ["say", "--help"], ["train", "--help"], ["train", "quick", "--help"], ["train"], ["config"]],
)
def test_9_all_help_is_on_standard_output(project, capsys, words):
    files = {
        "fdl.yml": "commands: {say: {run: echo}, train: }",
        "train/fdl.yml": "commands: {quick: {training: {lr: 1}}}",
    }
    project(files)
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: fdl")
    assert shown.err == ""


def test_10_surplus_arguments_are_errors_and_negative_numbers_are_values(capsys):
    args = Args(make_dataclass("Job", [("shift", int), ("lr", float, 0.1)]))
    assert args.parse(["-3", "--lr", "-1e-3"]) == args.type(-3, -1e-3)
    with pytest.raises(SystemExit) as error:
        args.parse(["1", "2"])
    assert error.value.code == 2


def test_11_completion_is_computed_at_every_tab_at_any_depth(project, capsys):
    from flodl.cli.completion import words_after
    from flodl.cli.manifest.loader import load

    root = project(
        {
            "fdl.yml": "commands: {a: }",
            "a/fdl.yml": "commands: {b: }",
            "a/b/fdl.yml": "entry: x\ncommands: {c: {options: {x: 1}}}",
        }
    )
    assert main(["completions", "bash"]) == 0
    assert "commands" not in capsys.readouterr().out  # the script does not depend on the project
    assert [item.value for item in words_after(load(root / "fdl.yml"), ("a", "b"), "")] == ["c"]


def test_12_words_for_a_container_are_shell_quoted(project, stand_in, monkeypatch):
    monkeypatch.setattr(container, "inside_container", lambda: False)
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: tool\ndocker: dev"})
    called = stand_in("docker")
    assert main(["train", "--name", 'say "$HOME" `x` it\'s']) == 0
    assert called()[-1] == "cd /workspace/train && tool --name 'say \"$HOME\" `x` it'\"'\"'s'"


def test_13_presets_are_checked_when_they_run_and_by_lint(project, capsys):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: echo
                schema: {options: {mode: {type: string, choices: [a]}}, strict: true}
                commands: {good: {options: {mode: a}}, bad: {options: {mode: b}}}
            """,
        }
    )
    assert main(["train", "good"]) == 0
    assert main(["train", "bad"]) == 1
    assert main(["config", "lint"]) == 1
    assert capsys.readouterr().err.count("train/fdl.yml:3: options.mode: 'b' is not allowed") == 2


def test_14_config_show_gives_file_and_line(project, capsys):
    project({"fdl.yml": "commands:\n  a:\n    run: x\n"})
    assert main(["config", "show"]) == 0
    assert "run: x    # fdl.yml:3" in capsys.readouterr().out


def test_15_an_unknown_shell_exits_with_2(capsys):
    assert main(["completions", "badshell"]) == 2
