"""`fdl monitor`: pages, files and data from the journals of runs."""

import json
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from flodl.cli.commands.monitor import command
from flodl.core import MonitorError, SetupError
from flodl.monitor import Event, Journal, Monitor


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    with Journal.open(folder) as journal:
        journal.write(Event("run_start", {"name": "reader", "total_epochs": 2}))
        for epoch in range(2):
            data = {"epoch": epoch, "metrics": {"loss": 0.5 / (epoch + 1)}, "duration_s": 1.0}
            journal.write(Event("epoch", data))
    return folder


def invoke(*words):
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_files_are_written_from_the_journal(run, tmp_path):
    done = invoke(
        run, "--html", tmp_path / "a.html", "--csv", tmp_path / "a.csv", "--log", tmp_path / "a.log"
    )
    assert done.exit_code == 0
    assert done.output.count("written to") == 3
    assert (tmp_path / "a.html").stat().st_size > 50_000
    assert (tmp_path / "a.csv").read_text().splitlines()[1].startswith("1,1,0.5")
    assert "epoch 2/2  loss=0.2500" in (tmp_path / "a.log").read_text()


def printed(*words):
    """Return what `--json` prints: the names of the settings that differ, and the runs by name."""
    found = json.loads(invoke(*words, "--json").stdout)
    return found, {run["name"]: run for run in found["runs"]}


def test_a_run_is_printed_as_json_with_its_epochs_and_its_best_and_last_values(run):
    found, runs = printed(run)
    assert invoke(run, "--json", "-").output.count('"history"') == 1
    assert (found["metric"], found["differing"]) == ("loss", [])
    assert runs["reader"]["metrics"]["loss"] == {"mode": "min", "best": 0.25, "epoch": 2, "last": 0.25}
    assert [epoch["metrics"] for epoch in runs["reader"]["history"]] == [{"loss": 0.5}, {"loss": 0.25}]


def test_a_direction_that_the_name_of_a_metric_does_not_say_is_assumed(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False) as monitor:
        monitor.log(0, {"quality": 0.5, "loss": 0.5})
    ((_, found),) = printed(tmp_path)[1].items()
    assert found["metrics"]["quality"]["mode_is_assumed"] is True
    assert "mode_is_assumed" not in found["metrics"]["loss"]


def write_runs(folder, *rates):
    for number, rate in enumerate(rates, start=1):
        config = {"lr": rate, "seed": 0}
        with Monitor(1, folder / f"{number:03d}", console=False, resources=False, config=config) as monitor:
            monitor.log(0, {"loss": 1.0 / number, "accuracy": float("nan")}, duration=1.0)


def test_several_runs_are_printed_as_json_with_the_names_of_the_settings_that_differ(tmp_path):
    write_runs(tmp_path, 0.1, 0.2)
    found, runs = printed(tmp_path / "001", tmp_path / "002")
    assert found["differing"] == ["lr"]
    assert runs["002"]["settings"] == {"lr": 0.2, "seed": 0}
    assert runs["002"]["folder"] == str(tmp_path / "002")
    assert runs["001"]["metrics"]["accuracy"]["best"] is None
    assert runs["001"]["metrics"]["accuracy"]["not_finite"] == {"last": "nan"}


def test_a_folder_of_runs_stands_for_its_runs(tmp_path):
    write_runs(tmp_path / "group" / "inner", 0.1, 0.2, 0.3)
    found, runs = printed(tmp_path)
    assert (list(runs), found["differing"]) == (["001", "002", "003"], ["lr"])


def test_a_run_folder_that_was_renamed_appears_under_its_new_name(tmp_path):
    write_runs(tmp_path, 0.1, 0.2)
    (tmp_path / "001").rename(tmp_path / "best")
    _found, runs = printed(tmp_path)
    assert list(runs) == ["002", "best"]


def test_the_runs_of_a_sweep_are_compared_by_its_metric_and_its_settings(tmp_path):
    write_runs(tmp_path, 0.1, 0.2)
    sweep = {"version": 1, "over": [{"name": "lr"}], "metric": "accuracy", "mode": "min"}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    found, runs = printed(tmp_path)
    assert found["metric"] == "accuracy"
    assert runs["001"]["metrics"]["accuracy"]["mode"] == "min"


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1, "over": 7}', '{"version": 1, "over": [1]}'])
def test_a_damaged_definition_of_a_sweep_does_not_hide_its_runs(tmp_path, content):
    write_runs(tmp_path, 0.1)
    (tmp_path / "sweep.json").write_text(content)
    found, runs = printed(tmp_path)
    assert (found["metric"], list(runs)) == ("accuracy", ["001"])


def test_a_sweep_without_runs_has_nothing_to_archive(tmp_path):
    (tmp_path / "sweep.json").write_text('{"version": 1, "over": [{"name": "lr"}]}')
    assert printed(tmp_path)[0]["runs"] == []
    with pytest.raises(MonitorError, match="no run has started yet in"):
        invoke(tmp_path, "--html", tmp_path / "a.html")


def test_a_damaged_run_in_a_folder_is_left_out_with_a_note(tmp_path):
    write_runs(tmp_path, 0.1, 0.2)
    (tmp_path / "002/journal.jsonl").write_bytes(b"\x00garbage\n" * 20)
    done = invoke(tmp_path, "--json")
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["001"]
    assert "left out: " in done.stderr


def test_a_missing_run_is_an_error(tmp_path):
    with pytest.raises(MonitorError, match=r"'.*nothing' does not exist. Pass the folder of a run"):
        invoke(tmp_path / "nothing")


@pytest.mark.parametrize("words", [["--json"], ["--csv", "a.csv"], ["--html", "a.html"], ["--log", "a.log"]])
def test_a_journal_of_garbage_is_an_error_and_writes_no_file(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/journal.jsonl").write_bytes(b"\x00garbage\n" * 20)
    with pytest.raises(MonitorError, match="none of its lines can be read"):
        invoke("bad", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "run"]


@pytest.mark.parametrize("content", [b"import flodl\n", b"\x00\xff" * 40, b"word"])
def test_a_file_that_is_not_a_journal_is_not_served(tmp_path, content):
    (tmp_path / "basic.py").write_bytes(content)
    with pytest.raises(MonitorError, match=r"basic.py is not a journal: none of its lines can be read"):
        invoke(tmp_path / "basic.py", "--port", "0")


def test_damaged_lines_are_counted(run):
    path = run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\x00\x00\n" + lines[1] + b'{"id":9,"ki\n' + lines[2])
    done = invoke(run, "--json")
    assert done.stderr == f"{path}: skipped 2 damaged lines (lines 2, 4).\n"
    (found,) = json.loads(done.stdout)["runs"]
    assert len(found["history"]) == 2


def test_a_dash_means_standard_output(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(run, "--csv", "-", "--log", "-")
    assert done.stdout.splitlines()[1].startswith("1,1,0.5")
    assert "epoch 2/2  loss=0.2500  [1s]" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_csv_takes_one_run(run, tmp_path):
    done = invoke(run, run, "--csv", tmp_path / "a.csv")
    assert done.exit_code == 2
    assert "--csv, --log and --ranks take one run" in done.output


def test_the_timeline_of_ranks_is_written_as_a_picture_or_a_page(run, tmp_path):
    row = {"rank": 0, "device": "cpu", "state": "finished", "since_s": 12.0, "train_s": 2.0}
    data = {"start_s": 10.0, "number": 0, "ranks": [row], "slices": {"0": [[10.0, 12.0, 2.0, 0.0, 0.0]]}}
    with Journal.open(run) as journal:
        journal.write(Event("ranks", data))
    for name in ("ranks.svg", "ranks.html"):
        done = invoke(run, "--ranks", tmp_path / name)
        assert done.output == f"written to {tmp_path / name}\n"
        assert 'aria-label="Timeline of 1 ranks"' in (tmp_path / name).read_text()


def test_a_run_on_one_device_has_no_timeline_of_ranks(run, tmp_path):
    with pytest.raises(MonitorError, match=r"was not trained on several ranks"):
        invoke(run, "--ranks", tmp_path / "ranks.svg")


@pytest.mark.slow
def test_the_page_is_served_until_interrupted_without_importing_torch(run):
    code = (
        "import sys; from flodl.cli.commands.monitor import command; "
        f"command.main([{str(run)!r}, '--port', '0'], standalone_mode=False); "
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}api/status", timeout=10) as response:
            assert json.load(response)["name"] == "reader"
        process.send_signal(2)
        assert process.wait(timeout=10) == 0


def test_a_folder_without_runs_is_an_error(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(MonitorError, match=r"has no journal. Pass the folder of a run"):
        invoke(tmp_path)


def test_exports_of_one_run_reject_a_folder_of_runs(tmp_path):
    write_runs(tmp_path, 0.1)
    assert "take one run" in invoke(tmp_path, "--csv", "-").output


def test_a_run_that_was_trained_without_a_monitor_says_what_is_missing(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "bundles").mkdir()
    with pytest.raises(
        MonitorError,
        match=r"has no journal.jsonl: the run was trained with monitor=False, or the file was removed",
    ):
        invoke(tmp_path)


def test_a_folder_of_runs_that_were_trained_without_a_monitor_says_so(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name / "bundles").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    told = r"contains runs without a journal.jsonl \(first, second\): each was trained with monitor=False, or"
    with pytest.raises(MonitorError, match=told):
        invoke(tmp_path)


@pytest.mark.parametrize("inner", ["bundles", "bundles/step-00000003"])
def test_a_folder_inside_a_run_names_the_run(run, inner):
    (run / inner).mkdir(parents=True)
    with pytest.raises(MonitorError, match=rf"{inner}' is a folder of a run. Pass the run itself: '{run}'"):
        invoke(run / inner)


def test_a_misspelled_folder_is_answered_with_a_similar_one(run):
    with pytest.raises(MonitorError, match=rf"{run.name}s' does not exist. Did you mean '{run.name}'\?"):
        invoke(run.with_name(f"{run.name}s"))


def test_of_several_folders_empty_ones_are_left_out_with_a_note(run, tmp_path):
    empty = tmp_path / "failed-early"
    empty.mkdir()
    done = invoke(empty, run, "--json")
    assert done.exit_code == 0
    assert f"left out, since they are empty: {empty}" in done.output
    with pytest.raises(MonitorError, match="has no journal"):
        invoke(empty, "--json")


def test_a_tilde_in_a_path_is_the_home_folder(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.parent))
    assert set(printed("~/run")[1]) == {"reader"}
    assert invoke("~/run", "--csv=~/a.csv").exit_code == 0
    assert (run.parent / "a.csv").is_file()


@pytest.mark.parametrize("option", ["--html", "--csv", "--log", "--ranks"])
def test_a_file_in_a_folder_that_does_not_exist_is_an_error(run, tmp_path, option):
    with pytest.raises(SetupError, match=rf"{option} .*: the folder .*nope does not exist. Create it"):
        invoke(run, option, tmp_path / "nope" / "file.svg")
    assert not (tmp_path / "nope").exists()
