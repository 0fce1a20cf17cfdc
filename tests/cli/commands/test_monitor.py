"""`fdl monitor`: pages, files and data from the journals of runs."""

import json
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from flodl.cli.commands.monitor import command
from flodl.core import MonitorError
from flodl.monitor import Event, Journal


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


def test_epochs_are_printed_as_json(run):
    (epochs,) = json.loads(invoke(run, "--json").output).values()
    assert invoke(run, "--json", "-").output == invoke(run, "--json").output
    assert [epoch["metrics"] for epoch in epochs] == [{"loss": 0.5}, {"loss": 0.25}]


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
    (epochs,) = json.loads(done.stdout).values()
    assert len(epochs) == 2


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
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urllib.request.urlopen(f"{url}api/status", timeout=10) as response:
        assert json.load(response)["name"] == "reader"
    process.send_signal(2)
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_a_folder_of_runs_names_some_of_them(run):
    for number in range(4):
        with Journal.open(run / f"run-{number}"):
            pass
    (run / "journal.jsonl").unlink()
    with pytest.raises(MonitorError, match=r"run-0, .*run-1, .*run-2 and 1 more have one: pass one of them"):
        invoke(run)


def test_a_run_that_was_trained_without_a_monitor_says_what_is_missing(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "bundles").mkdir()
    with pytest.raises(MonitorError, match=r"has no journal.jsonl: the run was trained with monitor=False"):
        invoke(tmp_path)


def test_a_folder_inside_a_run_names_the_run(run):
    (run / "bundles").mkdir()
    with pytest.raises(MonitorError, match=r"bundles' is a folder of a run. Pass the run itself"):
        invoke(run / "bundles")
