"""Runs of a sweep are kept only while their settings stay the same."""

import json

import pytest

from flodl.cli import main

MANIFEST = """
entry: python train.py
commands:
  run:
    training: {batch_size: 8}
  wide:
    training: {batch_size: 16}
"""
PROGRAM = """
import sys
import model
with open("started.txt", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(int("--fail" in sys.argv))
"""
SWEEP = ["sweep", "--over", "lr=0.1,0.2"]


@pytest.fixture
def folder(project):
    return project({"fdl.yml": MANIFEST, "train.py": PROGRAM, "model.py": "size = 8\n"})


def num_started(folder):
    return len((folder / "started.txt").read_text().splitlines())


def test_a_changed_setting_makes_finished_runs_a_different_sweep(folder, capfd):
    assert main(SWEEP) == 0
    definition = (folder / "runs/sweep-run/sweep.json").read_text()
    (folder / "fdl.yml").write_text(MANIFEST.replace("batch_size: 8", "batch_size: 1000"))
    capfd.readouterr()
    assert main([*SWEEP, "--metric", "loss"]) == 1
    told = capfd.readouterr().err
    assert f"{folder}/runs/sweep-run holds a different sweep: for its run 001, batch-size was 8" in told
    assert "and is now 1000 (fdl.yml:5). Pass a new folder as --out" in told
    assert (folder / "runs/sweep-run/sweep.json").read_text() == definition
    assert main([*SWEEP, "--out", "other"]) == 0
    assert num_started(folder) == 4


def test_a_dry_run_shows_the_runs_and_reports_what_the_start_would_report(folder, capfd):
    assert main(SWEEP) == 0
    (folder / "model.py").write_text("size = 16\n")
    capfd.readouterr()
    assert main([*SWEEP, "--dry-run"]) == 0
    assert "warning: model.py has changed since run 001 was made." in capfd.readouterr().err
    (folder / "fdl.yml").write_text(MANIFEST.replace("batch_size: 8", "batch_size: 1000"))
    assert main([*SWEEP, "--dry-run", "--json"]) == 1
    dry = capfd.readouterr()
    assert len(json.loads(dry.out)["planned"]) == 2
    assert "for its run 001, batch-size was 8" in dry.err
    assert main(SWEEP) == 1
    assert capfd.readouterr().err == dry.err
    assert main(["sweep", "--over", "lr=0.5", "--dry-run"]) == 1
    assert "holds a different sweep: its --over was" in capfd.readouterr().err
    assert num_started(folder) == 2


def test_another_environment_with_other_settings_is_a_different_sweep(folder, capfd):
    (folder / "fdl.night.yml").write_text("commands: {run: {training: {epochs: 50}}}\n")
    (folder / "fdl.same.yml").write_text("description: The same settings\n")
    assert main(SWEEP) == 0
    capfd.readouterr()
    assert main(["--env", "night", *SWEEP]) == 1
    assert "epochs was not set and is now 50 (fdl.night.yml:1)" in capfd.readouterr().err
    assert main(["--env", "same", *SWEEP]) == 0
    assert num_started(folder) == 2


def test_an_unfinished_sweep_does_not_continue_with_other_settings(folder, capfd):
    words = ["sweep", "--search", "random", "--over", "lr=0.1..0.9"]
    assert main([*words, "--runs", "1"]) == 0
    trial = folder / "runs/sweep-run/001/trial.json"
    trial.write_text(trial.read_text().replace('"finished"', '"interrupted"'))
    (folder / "fdl.yml").write_text(MANIFEST.replace("train.py", "train.py --new"))
    assert main([*words, "--runs", "2"]) == 1
    assert 'entry was "python train.py" (fdl.yml:1) and is now' in capfd.readouterr().err
    (folder / "fdl.yml").write_text(MANIFEST)
    assert main([*words, "--runs", "2"]) == 0
    assert num_started(folder) == 3


def test_the_line_of_a_script_is_compared_without_the_folder_of_the_run(folder, capfd):
    script = "commands:\n  go: {run: python train.py --a 1}\n"
    (folder / "fdl.yml").write_text(script)
    assert main([*SWEEP, "go"]) == 0
    assert main([*SWEEP, "go"]) == 0
    assert num_started(folder) == 2
    (folder / "fdl.yml").write_text(script.replace("--a 1", "--a 2"))
    assert main([*SWEEP, "go"]) == 1
    assert 'run was "python train.py --a 1" (fdl.yml:2)' in capfd.readouterr().err


def test_a_changed_program_file_is_named_and_an_unrelated_one_is_not(folder, capfd):
    assert main(SWEEP) == 0
    (folder / "notes.py").write_text("unrelated\n")
    (folder / "fdl.yml").write_text(f"# a comment\n{MANIFEST}")
    assert main(SWEEP) == 0
    assert "warning" not in capfd.readouterr().err
    (folder / "model.py").write_text("size = 16\n")
    assert main(SWEEP) == 0
    assert "warning: model.py has changed since run 001 was made." in capfd.readouterr().err
    assert num_started(folder) == 2


def test_a_run_that_failed_without_results_may_be_retried_with_other_settings(folder, capfd):
    (folder / "fdl.yml").write_text(MANIFEST.replace("train.py", "train.py --fail"))
    assert main(SWEEP) == 1
    (folder / "fdl.yml").write_text(MANIFEST)
    assert main([*SWEEP, "--retry"]) == 0
    assert main(SWEEP) == 0
    assert num_started(folder) == 4


def test_a_run_of_an_earlier_version_has_nothing_to_compare(folder):
    assert main(SWEEP) == 0
    for path in (folder / "runs/sweep-run").glob("*/trial.json"):
        content = json.loads(path.read_text())
        del content["record"]
        path.write_text(json.dumps(content))
    assert main(SWEEP) == 0


def test_a_new_option_of_the_program_is_not_another_setting(folder):
    schema = "schema: {options: {lr: {type: float}, output: {type: path}, batch-size: {type: int}%s}}\n"
    (folder / "fdl.yml").write_text(MANIFEST + schema % "")
    assert main(SWEEP) == 0
    (folder / "fdl.yml").write_text(MANIFEST + schema % ", new: {type: int, default: 3}")
    assert main(SWEEP) == 0
    assert num_started(folder) == 2
