import json
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

import flodl
from flodl.cli import main, quickstart_example

SMALL = ["--epochs", "2", "--images", "1200"]


def fdl(*arguments, cwd):
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True, cwd=cwd
    )


@pytest.mark.slow
def test_it_trains_saves_and_suggests_what_to_try_next(tmp_path):
    done = fdl("quickstart", *SMALL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Hardware: ")
    assert "1000 for training, 200 for the test" in lines[1]
    first, second = (line for line in lines if line.startswith("epoch "))
    assert first.startswith("epoch 1/2  training loss=")
    assert "  test accuracy=0." in first
    assert "  ETA " in first
    assert second.startswith("epoch 2/2")
    assert "ETA" not in second
    assert "Test accuracy: " in done.stdout
    assert "fdl quickstart --epochs 4" in done.stdout
    folder = tmp_path / "runs/quickstart"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "graph.svg",
        "journal.index",
        "journal.jsonl",
        "model.fdl",
        "model.svg",
        "trends.html",
    ]
    assert "<svg" in (folder / "model.svg").read_text()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result_and_the_same_checkpoint(tmp_path, capsys):
    results = []
    for name in ("one", "other"):
        arguments = ["quickstart", *SMALL, "--seed", "3", "--out", str(tmp_path / name), "--json"]
        assert main(arguments) == 0
        shown = capsys.readouterr()
        assert shown.out.count("\n") == 1
        assert "epoch 2/2" in shown.err
        results.append(json.loads(shown.out))
    one, other = results
    assert one["history"] == other["history"]
    assert one["accuracy"] == one["history"]["eval_accuracy"][-1]

    flodl.manual_seed(99)
    model = quickstart_example.build_model()
    _, test = quickstart_example.make_data(1200, seed=3)
    model.load_checkpoint(one["files"]["checkpoint"])
    _, values = quickstart_example.loss_and_accuracy(model.eval(), *test)
    assert float(values["accuracy"]) == pytest.approx(one["accuracy"])


@pytest.mark.slow
def test_earlier_results_are_kept_in_the_default_folder_and_replaced_in_a_chosen_one(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = ["quickstart", "--epochs", "1", "--images", "60"]
    assert main(arguments) == 0
    assert "for 1 epoch.\n" in capsys.readouterr().out
    first = (tmp_path / "runs/quickstart/model.fdl").read_bytes()
    assert main([*arguments, "--seed", "1"]) == 0
    second = capsys.readouterr().out
    assert second.startswith(
        "The results are saved in runs/quickstart-2, because runs/quickstart has those of"
    )
    assert "runs/quickstart-2/model.fdl" in second
    assert (tmp_path / "runs/quickstart/model.fdl").read_bytes() == first
    assert main([*arguments, "--seed", "2", "--out", "runs/quickstart"]) == 0
    assert "The results of an earlier run in runs/quickstart are replaced.\n" in capsys.readouterr().out
    assert (tmp_path / "runs/quickstart/model.fdl").read_bytes() != first
    assert not (tmp_path / "runs/quickstart-3").exists()


@pytest.mark.slow
def test_quiet_prints_only_the_requested_json(tmp_path, capsys):
    arguments = ["quickstart", "--epochs", "1", "--images", "60", "--out", str(tmp_path)]
    assert main([*arguments, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*arguments, "-q", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["settings"] == {"epochs": 1, "images": 60, "seed": 0}
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "Invalid value for '--epochs': 0 is not in the range 1<=x<=1000."),
        (["--epochs", "many"], "Invalid value for '--epochs': 'many' is not a valid integer range."),
        (["--seed", "-1"], "Invalid value for '--seed': -1 is not in the range"),
        (["--images", "5"], "Invalid value for '--images': 5 is not in the range"),
    ],
)
def test_values_out_of_range_are_rejected(capsys, arguments, message):
    assert main(["quickstart", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_created_is_an_error_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["quickstart", "--out", str(tmp_path / "file/run")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: --out {tmp_path / 'file/run'}: ")


@pytest.mark.slow
def test_after_an_interrupt_the_same_command_resumes_with_the_same_result(tmp_path, warm_python):
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    arguments = ["quickstart", "--epochs", "12", "--images", "600", "--json"]
    running = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments], cwd=tmp_path, text=True, stdout=PIPE, stderr=PIPE
    )
    while not running.stderr.readline().startswith("epoch 2/"):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 75
    assert errors.endswith("Stopped. Run the same command to resume.\n")

    resumed = warm_python.run("-m", "flodl", *arguments, cwd=tmp_path)
    uninterrupted = warm_python.run("-m", "flodl", *arguments, "--out", "other", cwd=tmp_path)
    assert json.loads(resumed.stdout)["history"] == json.loads(uninterrupted.stdout)["history"]
    assert "epoch 1/" not in resumed.stderr
