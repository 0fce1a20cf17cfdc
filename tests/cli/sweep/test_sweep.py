"""`fdl sweep`: what it runs, what it keeps on disk, and how it continues after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flodl.cli import main

PROGRAM = """
import json, os, sys, time
from dataclasses import dataclass
from pathlib import Path
from flodl.cli import Args, option

@dataclass
class Settings:
    lr: float = option(0.1, help="The learning rate.")
    hidden: int = option(8, help="The size.")
    flag: bool = option(False, help="A flag.")
    wait: float = option(0.0, help="Seconds to wait.")
    output: Path = option(Path("runs"), help="The folder.")

settings = Args(Settings).parse()
from flodl.monitor import Monitor
if settings.hidden == 13:
    sys.exit("hidden must not be 13")
with open("started.txt", "a") as file:
    file.write(f"{settings.output.name} {os.getpid()}\\n")
with Monitor(2, settings.output, console=False, resources=False) as monitor:
    for epoch in range(2):
        monitor.log(epoch, {"loss": 1.0 - settings.lr, "eval_accuracy": settings.lr * (1 + epoch) / 2})
    time.sleep(settings.wait)
"""

MANIFEST = """
entry: python train.py
sweep:
  over:
    lr: [0.1, 0.4, 0.2]
commands:
  run:
    options: {hidden: 8}
  wide:
    options: {hidden: 64}
"""


@pytest.fixture
def sweep_project(project):
    return project({"fdl.yml": MANIFEST, "train.py": PROGRAM})


def started(folder):
    path = folder / "started.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_dry_run_shows_each_run_and_the_origin_of_every_value(sweep_project, capfd):
    assert main(["sweep", "--dry-run", "--over", "hidden=8,16", "--metric", "loss"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "# in runs/sweep-run"
    assert "lr: 0.1, 0.4, 0.2  # fdl.yml:4" in lines
    assert "hidden: 8, 16      # --over, instead of 8 (fdl.yml:7)" in lines
    assert "metric: loss       # --metric" in lines
    assert "search: grid       # default" in lines
    assert lines[-6].startswith("001  python train.py --lr 0.1 --hidden 8 --output runs/sweep-run/001")
    assert started(sweep_project) == []


@pytest.mark.slow
def test_each_run_has_its_folder_and_the_table_lists_the_best_first(sweep_project, capfd):
    assert main(["sweep"]) == 0
    output = capfd.readouterr()
    heads, *rows = output.out.splitlines()
    assert heads.split()[:4] == ["run", "lr", "best", "eval_accuracy"]
    assert [row.split()[:3] for row in rows] == [
        ["002", "0.4", "0.4000"],
        ["003", "0.2", "0.2000"],
        ["001", "0.1", "0.1000"],
    ]
    assert "judged by eval_accuracy (higher is better), by its name" in output.err
    folder = sweep_project / "runs/sweep-run"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["001", "002", "003"]
    assert all((folder / name / "journal.jsonl").is_file() for name in ("001", "002", "003"))
    table = (folder / "table.csv").read_text().splitlines()
    assert table[0] == "run,state,time_s,lr,best loss,last loss,best eval_accuracy,last eval_accuracy"
    assert len(table) == 4


@pytest.mark.slow
def test_a_finished_sweep_runs_nothing_again_and_prints_its_results(sweep_project, capfd):
    assert main(["sweep", "--json"]) == 0
    capfd.readouterr()
    assert main(["sweep", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert started(sweep_project) == ["001", "002", "003"]
    assert (found["metric"], found["mode"]) == ("eval_accuracy", "max")
    assert [run["result"] for run in found["runs"]] == [0.4, 0.2, 0.1]
    assert found["runs"][0]["values"] == {"lr": 0.4}


@pytest.mark.slow
def test_a_given_mode_changes_what_is_best(sweep_project, capfd):
    assert main(["sweep", "--metric", "eval_accuracy", "--mode", "min", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [run["result"] for run in found["runs"]] == [0.05, 0.1, 0.2]


@pytest.mark.slow
def test_a_mode_without_a_metric_counts_everywhere(project, capfd):
    falling = PROGRAM.replace(
        '"eval_accuracy": settings.lr * (1 + epoch) / 2', '"eval_loss": settings.lr / (1 + epoch)'
    )
    folder = project({"fdl.yml": MANIFEST, "train.py": falling.replace("settings.wait", "0.0")})
    assert main(["sweep", "--mode", "max"]) == 0
    output = capfd.readouterr()
    assert [row.split()[2] for row in output.out.splitlines()[1:]] == ["0.4000", "0.2000", "0.1000"]
    assert "judged by eval_loss (higher is better, as asked), chosen by its name." in output.err
    heads, *rows = [
        line.split(",") for line in (folder / "runs/sweep-run/table.csv").read_text().splitlines()
    ]
    assert [row[heads.index("best eval_loss")] for row in rows] == ["0.1", "0.4", "0.2"]
    assert main(["sweep", "--mode", "max", "--json"]) == 0
    runs = json.loads(capfd.readouterr().out)["runs"]
    assert [(run["result"], run["metrics"]["eval_loss"]["mode"]) for run in runs] == [
        (0.4, "max"),
        (0.2, "max"),
        (0.1, "max"),
    ]


@pytest.mark.slow
def test_a_mode_without_a_metric_chooses_a_metric_of_that_direction(sweep_project, capfd):
    assert main(["sweep", "--mode", "min"]) == 0
    assert "judged by loss (lower is better, as asked), chosen by its name." in capfd.readouterr().err


@pytest.mark.slow
def test_a_direction_that_the_name_does_not_say_is_assumed_unless_mode_gives_it(project, capfd):
    project({"fdl.yml": MANIFEST, "train.py": PROGRAM.replace("eval_accuracy", "quality")})
    assert main(["sweep", "--metric", "quality"]) == 0
    want = (
        "judged by quality, as asked. Its name does not say which values are better, so lower is better was "
        "assumed: pass --mode min or --mode max."
    )
    assert want in capfd.readouterr().err
    assert main(["sweep", "--metric", "quality", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["mode_is_assumed"]
    assert found["runs"][0]["metrics"]["quality"]["mode_is_assumed"]
    assert main(["sweep", "--metric", "quality", "--mode", "min"]) == 0
    assert "judged by quality (lower is better), as asked." in capfd.readouterr().err
    assert main(["sweep", "--metric", "loss", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert "mode_is_assumed" not in found


@pytest.mark.slow
def test_a_metric_that_no_run_has_stops_the_sweep_after_its_first_run(sweep_project, capfd):
    for _ in range(2):
        assert main(["sweep", "--metric", "eval_acuracy"]) != 0
        told = capfd.readouterr().err
        assert "--metric: run 001 has finished without the metric 'eval_acuracy'" in told
        assert "eval_accuracy" in told.replace("eval_acuracy", "")
    assert started(sweep_project) == ["001"]
    assert main(["sweep", "--metric", "eval_accuracy"]) == 0
    assert started(sweep_project) == ["001", "002", "003"]


@pytest.mark.slow
def test_a_sweep_is_judged_by_the_number_of_a_single_class(project, capfd):
    table = ', tables={"eval_f1": {"labels": ["cat", "loss"], "values": [0.5, settings.lr]}})'
    program = PROGRAM.replace("(1 + epoch) / 2})", "(1 + epoch) / 2}" + table)
    project({"fdl.yml": MANIFEST, "train.py": program})
    assert main(["sweep", "--metric", "eval_f1_loss", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["mode"], [run["result"] for run in found["runs"]]) == ("max", [0.4, 0.2, 0.1])


@pytest.mark.slow
def test_presets_are_one_more_dimension(sweep_project, capfd):
    assert main(["sweep", "--presets", "run,wide", "--over", "lr=0.1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [run["values"] for run in found["runs"]] == [
        {"preset": "run", "lr": 0.1},
        {"preset": "wide", "lr": 0.1},
    ]
    assert started(sweep_project) == ["001", "002"]


@pytest.mark.slow
def test_a_failed_run_is_reported_and_runs_again_only_when_asked(sweep_project, capfd):
    words = ["sweep", "--over", "lr=0.1", "--over", "hidden=13,8"]
    assert main(words) == 1
    assert "failed with exit code 1: see runs/sweep-run/001/output.log" in capfd.readouterr().err
    assert "hidden must not be 13" in (sweep_project / "runs/sweep-run/001/output.log").read_text()
    program = sweep_project / "train.py"
    program.write_text(program.read_text().replace("== 13", "== 14"))
    assert main(words) == 1
    assert started(sweep_project) == ["002"]
    capfd.readouterr()
    assert main([*words, "--retry"]) == 0
    assert started(sweep_project) == ["002", "001"]
    assert "run 001/002  lr=0.1 hidden=13  starts again" in capfd.readouterr().err  # it has no save


@pytest.mark.slow
@pytest.mark.parametrize("script", [False, True])
def test_a_killed_run_names_the_signal_everywhere(project, capfd, script):
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    shell = "commands: {die: {run: 'python die.py; exit $?'}}"
    project(
        {
            "fdl.yml": shell if script else "entry: python die.py\ncommands: {die: {training: {}}}",
            "die.py": program,
        }
    )
    assert main(["sweep", "--over", "lr=0.1", "die"]) == 1
    out, err = capfd.readouterr()
    assert "killed by SIGKILL (signal 9). The system does this when memory runs out; check `dmesg`." in err
    assert "See runs/sweep-die/001/output.log" in err
    assert "exit code" not in err
    assert out.splitlines()[1].endswith("failed (SIGKILL)")
    main(["sweep", "--over", "lr=0.1", "--json", "die"])
    run = json.loads(capfd.readouterr().out)["runs"][0]
    assert (run["state"], run["signal"], run["exit_code"]) == ("failed", "SIGKILL", 137 if script else -9)


def test_a_sweep_whose_runs_all_failed_does_not_ask_for_a_journal(sweep_project, capfd):
    assert main(["sweep", "--over", "lr=0.1", "--over", "hidden=13"]) == 1
    output = capfd.readouterr().err
    assert "1 run failed. To run them again, add --retry." in output
    assert "No run has recorded a metric" not in output


@pytest.mark.slow
def test_more_runs_extend_a_random_sweep(sweep_project, capfd):
    words = ["sweep", "--search", "random", "--over", "lr=0.1..0.9", "--json"]
    assert main([*words, "--runs", "2"]) == 0
    first = json.loads(capfd.readouterr().out)["runs"]
    assert main([*words, "--runs", "3"]) == 0
    second = {run["run"]: run["values"] for run in json.loads(capfd.readouterr().out)["runs"]}
    assert started(sweep_project) == ["001", "002", "003"]
    assert all(second[run["run"]] == run["values"] for run in first)


def test_a_dry_run_of_more_runs_than_combinations_runs_each_once_and_says_so(sweep_project, capfd):
    assert (
        main(["sweep", "--dry-run", "--search", "random", "--over", "lr=0.1", "--over", "hidden=1..3"]) == 0
    )
    shown = capfd.readouterr()
    runs = [line for line in shown.out.splitlines() if line[:3].isdigit()]
    assert len(runs) == len({line.partition("--output")[0][3:] for line in runs}) == 3
    assert shown.err == (
        "The space has 3 combinations, so there are 3 runs instead of 10: each combination runs once.\n"
    )


@pytest.mark.slow
def test_a_sweep_that_has_repeated_a_combination_is_resumed_with_new_ones(sweep_project, capfd):
    words = ["sweep", "--over", "lr=0.1", "--over", "hidden=1..4"]
    assert main([*words, "--runs", "2"]) == 0
    first, second = (sweep_project / "runs/sweep-run" / name / "trial.json" for name in ("001", "002"))
    repeated = json.loads(first.read_text())
    second.write_text(json.dumps({**repeated, "number": 2}))
    capfd.readouterr()
    assert main([*words, "--runs", "4", "--json"]) == 0
    hidden = [run["values"]["hidden"] for run in sorted_runs(capfd)]
    assert hidden[0] == hidden[1] == repeated["values"]["hidden"]
    assert len(set(hidden[1:])) == 3


def sorted_runs(capfd):
    return sorted(json.loads(capfd.readouterr().out)["runs"], key=lambda run: run["run"])


def test_the_folder_of_the_runs_cannot_be_swept_over(sweep_project, capfd):
    assert main(["sweep", "--over", "output=a,b"]) != 0
    assert "--output is the folder of a run, which the sweep chooses" in capfd.readouterr().err
    assert not (sweep_project / "runs").exists()


def test_values_that_the_program_does_not_accept_are_errors_before_anything_starts(sweep_project, capfd):
    assert main(["sweep", "--over", "hidden=8,wide"]) == 1
    assert "--over: hidden: 'wide' is not a valid int." in capfd.readouterr().err
    assert main(["sweep", "--over", "learning-rate=1,2"]) == 1
    assert "--over: learning-rate: the entry has no option --learning-rate." in capfd.readouterr().err
    assert main(["sweep", "--over", "flag=1,0"]) == 1
    assert "--over: flag: '1' is not a valid bool. Use true or false." in capfd.readouterr().err
    assert not (sweep_project / "runs").exists()


@pytest.mark.parametrize("second", ["learning-rate=0.3", "learning_rate=0.3"])
def test_an_option_in_two_over_is_an_error(sweep_project, capfd, second):
    assert main(["sweep", "--over", "learning_rate=0.1,0.2", "--over", second]) == 1
    message = f"--over '{second}': --over 'learning_rate=0.1,0.2' already sweeps over --learning-rate."
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("words", [["--output", "runs/mine"], ["--output=runs/mine"]])
def test_a_folder_for_all_runs_is_an_error(sweep_project, capfd, words):
    assert main(["sweep", "--over", "hidden=8,16", "wide", *words]) == 1
    told = capfd.readouterr().err
    assert "the command has --output, but each run of a sweep gets a folder of its own" in told
    assert "--out runs/mine" in told


def test_a_value_for_all_runs_of_a_swept_option_is_an_error(sweep_project, capfd):
    assert main(["sweep", "--over", "hidden=8,16", "wide", "--hidden", "5"]) == 1
    assert "--over: --hidden is swept over, but the command also has a value" in capfd.readouterr().err
    assert main(["sweep", "wide", "--lr=5"]) == 1
    assert "fdl.yml:4: --lr is swept over, but the command also has a value" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("manifest", "line"),
    [
        ("entry: python train.py --lr 0.1\ncommands: {run: {training: {}}}", 1),
        ("commands:\n  run:\n    run: python other.py --x 1 && python train.py --lr=0.1", 3),
        ("commands:\n  run:\n    run: python train.py\n    append: --lr 0.1", 4),
    ],
)
def test_a_swept_option_that_the_command_line_in_the_manifest_fixes_is_an_error(
    project, capfd, manifest, line
):
    project({"fdl.yml": manifest, "train.py": "print()", "other.py": "print()"})
    assert main(["sweep", "--dry-run", "--over", "lr=0.1,0.2", "run"]) == 1
    assert f"fdl.yml:{line} passes --lr already. Remove it there, or the sweep" in capfd.readouterr().err
    assert main(["sweep", "--dry-run", "--over", "x=0.1,0.2", "run"]) == 0


def test_an_option_of_the_sweep_after_the_command_says_where_it_belongs(sweep_project, capfd):
    assert main(["sweep", "run", "--jobs", "2"]) == 2
    assert "--jobs is an option of fdl sweep: put it before the command" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--presets", "run,wid"], "has no preset 'wid'. Did you mean 'wide'?"),
        (
            ["--presets", "run", "wide"],
            "`wide` is a preset or a script already, so presets cannot be swept on top of it. Leave out "
            "`wide`: --presets refers to the presets of the program in ",
        ),
        (["--folder-option", "folder"], "the program has no option --folder for the folder of a run"),
        (["--search", "grid", "--runs", "2"], "the grid has 3 runs"),
        (["nothing"], "there is no command 'nothing'"),
    ],
)
def test_mistakes_say_what_to_do(sweep_project, capfd, words, message):
    assert main(["sweep", *words]) == 1
    assert message in capfd.readouterr().err


def test_a_mistake_in_the_manifest_names_its_line(project, capfd):
    project({"fdl.yml": "entry: python train.py\nsweep:\n  over: {lr: {from: 1}}\n", "train.py": PROGRAM})
    assert main(["sweep"]) == 1
    assert "fdl.yml:3: sweep.over.lr: `from:` and `to:` are required" in capfd.readouterr().err
    for sweep, message in [
        ("{over: {lrr: [1, 2]}}", "fdl.yml:2: sweep.over.lrr: the entry has no option --lrr. Did you mean"),
        ("{over: {hidden: [abc, 16]}}", "fdl.yml:2: sweep.over.hidden: 'abc' is not a valid int."),
        ("{runs: 3, over: {lr: [1, 2]}}", "fdl.yml:2: the grid has 2 runs, but 3 were requested."),
    ]:
        project(
            {"fdl.yml": f"entry: python train.py\nsweep: {sweep}\ncommands: {{run: {{training: {{}}}}}}\n"}
        )
        assert main(["sweep"]) == 1
        assert message in capfd.readouterr().err
    project({"fdl.yml": "entry: python train.py\nsweep:\n  searh: grid\n"})
    assert main(["sweep"]) == 1
    assert "sweep.searh: unknown key. Did you mean 'search'?" in capfd.readouterr().err


def test_without_values_there_is_nothing_to_sweep(project, capfd):
    project({"fdl.yml": "entry: python train.py\n", "train.py": PROGRAM})
    assert main(["sweep"]) == 1
    assert "there is nothing to sweep over. Write --over" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["--over", "lr=0.1,0.2"], ["--presets=run"]])
def test_values_to_sweep_over_after_the_command_say_where_they_belong(project, capfd, words):
    manifest = "entry: python train.py\ncommands: {run: {training: {}}}\n"
    project({"fdl.yml": manifest, "train.py": PROGRAM})
    assert main(["sweep", "run", *words]) == 1
    name = words[0].partition("=")[0]
    assert f"{name} is an option of fdl sweep: put it before the command." in capfd.readouterr().err


def test_a_tilde_in_the_folder_of_a_sweep_is_the_home_folder(sweep_project, capfd, monkeypatch):
    monkeypatch.setenv("HOME", str(sweep_project / "home"))
    assert main(["sweep", "--out=~/sw", "--dry-run", "--json"]) == 0
    planned = json.loads(capfd.readouterr().out)
    assert planned["folder"] == str(sweep_project / "home/sw")
    assert planned["planned"][0]["command"][-1] == "home/sw/001"


def test_a_different_space_is_shown_as_it_is_typed(sweep_project, capfd):
    folder = sweep_project / "sw"
    folder.mkdir()
    over = [
        {"name": "lr", "from": 0.001, "to": 0.1, "scale": "log", "steps": 4},
        {"name": "hidden", "values": [4, 8]},
    ]
    saved = {"version": 1, "command": ["run"], "words": [], "over": over, "search": "grid", "seed": 0}
    (folder / "sweep.json").write_text(json.dumps(saved))
    assert main(["sweep", "--over", "lr=1,2", "--out", "sw"]) == 1
    told = "its --over was lr=0.001..0.1:log:4 hidden=4,8, not lr=1,2."
    assert told in capfd.readouterr().err


@pytest.mark.slow
def test_a_folder_with_another_sweep_is_left_alone(sweep_project, capfd):
    assert main(["sweep", "--over", "lr=0.1"]) == 0
    capfd.readouterr()
    assert main(["sweep", "--over", "lr=0.5"]) == 1
    assert "holds a different sweep: its --over was lr=0.1, not lr=0.5. Pass" in capfd.readouterr().err
    assert main(["sweep", "--over", "lr=0.1", "run", "--hidden", "4"]) == 1
    told = "its command was run, not run --hidden 4. Pass a new folder as --out"
    assert told in capfd.readouterr().err
    (sweep_project / "notes").mkdir()
    (sweep_project / "notes/a.txt").write_text("mine")
    assert main(["sweep", "--out", "notes"]) == 1
    assert "is not empty and holds no sweep" in capfd.readouterr().err


def start(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "flodl.cli", "sweep", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(test, limit_s=60):
    end_s = time.monotonic() + limit_s
    while not test():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def journal_has(folder, text):
    path = folder / "journal.jsonl"
    return path.exists() and text in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_stops_its_run_and_the_same_command_resumes_it(sweep_project, capfd, number):
    runs = sweep_project / "runs/sweep-run"
    process = start(sweep_project, "run", "--wait", "60")
    wait_for(lambda: journal_has(runs / "001", '"epoch":1'))
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 75), output
    assert "To resume: fdl sweep run --wait 60" in output
    trial = json.loads((runs / "001/trial.json").read_text())
    assert (trial["state"], trial["pid"]) == ("interrupted", None)
    for path in (runs / "sweep.json", runs / "001/trial.json"):  # the same sweep, without the wait
        path.write_text(path.read_text().replace('"60"', '"0"').replace("60.0", "0.0"))
    assert main(["sweep", "run", "--wait", "0"]) == 0
    assert started(sweep_project) == ["001", "001", "002", "003"]


@pytest.mark.slow
def test_after_a_kill_the_run_that_still_trains_is_waited_for_not_started_twice(sweep_project, capfd):
    runs = sweep_project / "runs/sweep-run"
    process = start(sweep_project, "run", "--wait", "4")
    wait_for(lambda: journal_has(runs / "001", '"epoch":1'))
    process.kill()
    process.communicate(timeout=60)
    pid = json.loads((runs / "001/trial.json").read_text())["pid"]
    os.kill(pid, 0)  # it outlives the sweep
    assert main(["sweep", "--json", "run", "--wait", "4"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert started(sweep_project) == ["001", "002", "003"]
    assert [run["state"] for run in found["runs"]] == ["finished"] * 3


@pytest.mark.slow
def test_a_second_sweep_in_the_same_folder_is_an_error(sweep_project, capfd):
    process = start(sweep_project, "run", "--wait", "30")
    try:
        wait_for(lambda: (sweep_project / "runs/sweep-run/001/trial.json").exists())
        assert main(["sweep", "run", "--wait", "30"]) == 1
        assert "another `fdl sweep` runs in" in capfd.readouterr().err
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_jobs_run_at_the_same_time(sweep_project, capfd):
    assert main(["sweep", "--jobs", "3", "run", "--wait", "3"]) == 0
    times = []
    for name in ("001", "002", "003"):
        lines = (sweep_project / "runs/sweep-run" / name / "journal.jsonl").read_text().splitlines()
        times.append([json.loads(lines[0])["time_s"], json.loads(lines[-1])["time_s"]])
    assert max(first for first, _ in times) < min(last for _, last in times)


@pytest.mark.slow
def test_a_script_receives_the_values_after_its_own_words(project, capfd):
    folder = project(
        {"fdl.yml": "commands:\n  go:\n    run: python train.py --hidden 9\n", "train.py": PROGRAM}
    )
    assert main(["sweep", "--over", "lr=0.1,0.2", "--json", "go"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [run["result"] for run in found["runs"]] == [0.2, 0.1]
    assert Path(found["folder"]) == folder / "runs/sweep-go"


@pytest.mark.slow
def test_the_journal_of_a_run_records_the_origin_of_its_values(sweep_project, capfd):
    program = sweep_project / "train.py"
    program.write_text(
        program.read_text().replace(
            "from flodl.monitor import Monitor",
            "from flodl.monitor import Monitor\n"
            "from flodl.core.environment import resolved_config\n"
            "Path('table.json').write_text(json.dumps(resolved_config()))",
        )
    )
    assert main(["sweep", "--over", "lr=0.3"]) == 0
    table = json.loads((sweep_project / "table.json").read_text())
    assert table["lr"] == {"value": 0.3, "origin": "--over (sweep, run 001)"}
    assert table["hidden"] == {"value": 8, "origin": "fdl.yml:7"}


def test_suggested_commands_quote_paths_and_name_the_environment(project, capfd):
    project(
        {
            "fdl.yml": "entry: python stop.py\ncommands: {run: {training: {seed: 1}}}\n",
            "fdl.night.yml": "commands: {run: {training: {epochs: 2}}}\n",
            "stop.py": "import sys\nsys.exit(75)\n",
        }
    )
    assert main(["--env", "night", "sweep", "--over", "lr=0.1", "--out", "my sweep"]) == 130
    told = capfd.readouterr().err
    assert "Follow it: fdl monitor 'my sweep'" in told
    assert "To resume: fdl --env night sweep --over lr=0.1 --out '" in told


TYPED_MANIFEST = "entry: python train.py\ncommands: {run: {options: {wait: 0}}}\n"
TYPED_PROGRAM = PROGRAM.replace(
    "    flag: bool",
    "    rate: float = option(1.0, choices=[1.0, 2.0])\n"
    "    levels: int = option(1, choices=[1, 2])\n"
    "    flag: bool",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "values"),
    [
        ("lr=1..10:3", ["1.0", "5.5", "10.0"]),
        ("lr=0..1:2", ["0.0", "1.0"]),
        ("hidden=1..10:3", ["1", "6", "10"]),
        ("rate=1,2", ["1", "2"]),
        ("levels=1..2:2", ["1", "2"]),
    ],
)
def test_a_range_of_a_float_option_has_floats(project, capfd, over, values):
    project({"fdl.yml": TYPED_MANIFEST, "train.py": TYPED_PROGRAM})
    assert main(["sweep", "--dry-run", "--search", "grid", "--over", over]) == 0
    name = over.partition("=")[0]
    lines = capfd.readouterr().out.splitlines()
    found = [line.split(f"--{name} ")[1].split()[0] for line in lines if f"--{name} " in line]
    assert found == values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("rate=1..4", "1..4 is a range of numbers, but --rate has the choices 1.0, 2.0. List the values"),
        ("flag=0..1", "0..1 is a range of numbers, but --flag is a bool"),
        ("1..10:3", "--over '1..10:3' is a range without an option. Write --over NAME=1..10:3."),
        (
            "lr=1..10:3.5",
            "'3.5' after the range 1..10 is neither a scale (linear or log) nor a number of values",
        ),
        ("lr=1..10:", "'' after the range 1..10 is neither a scale"),
    ],
)
def test_a_range_that_an_option_cannot_have_is_an_error(project, capfd, over, message):
    project({"fdl.yml": TYPED_MANIFEST, "train.py": TYPED_PROGRAM})
    assert main(["sweep", "--dry-run", "--over", over]) != 0
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_retry_runs_those_again_that_have_finished_without_metrics(project, capfd):
    silent = PROGRAM.replace("from flodl.monitor import Monitor", "sys.exit()")
    folder = project({"fdl.yml": MANIFEST, "train.py": silent})
    words = ["sweep", "--over", "lr=0.1,0.2", "--metric", "loss"]
    assert main(words) != 0
    assert "--retry runs those without metrics again." in capfd.readouterr().err
    (folder / "train.py").write_text(PROGRAM)
    assert main(words) != 0
    capfd.readouterr()
    assert main([*words, "--retry"]) == 0
    output = capfd.readouterr()
    assert "run 001/002  lr=0.1  starts again" in output.err
    assert "judged by loss (lower is better), as asked." in output.err
    assert started(folder) == ["001", "002"]
    assert main([*words, "--retry"]) == 0
    assert started(folder) == ["001", "002"]


def test_a_sweep_without_results_is_not_judged(sweep_project, capfd):
    assert main(["sweep", "--over", "lr=0.1", "--over", "hidden=13", "--metric", "loss"]) == 1
    assert "judged by" not in capfd.readouterr().err
