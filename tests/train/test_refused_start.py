"""A start that is refused changes nothing: neither the record of the run, nor its journal, nor its saves."""

import pytest
import torch
from torch import nn

from flodl import Monitor
from flodl.core import FlodlError, TrainError
from flodl.monitor import read


def content_of(folder):
    """Return every file below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def small(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Dropout(0.0), nn.Linear(width, 1))


class OneShot:
    """An iterator, which cannot be read for several evaluations."""

    def __init__(self, data):
        self.batches = iter([data])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)


def refused(make, data, folder):
    """Return starts in the folder of a finished run of three epochs that are refused, by reason."""
    settings = {"checkpoint_dir": folder, "monitor": None}
    return {
        "never": lambda: make(**settings).fit(data, epochs=3, batch_size=8, resume="never"),
        "fewer epochs": lambda: make(**settings).fit(data, epochs=2, batch_size=8),
        "no epochs": lambda: make(**settings).fit(data, epochs=0, batch_size=8),
        "other model": lambda: make(small(9), **settings).fit(data, epochs=4, batch_size=8),
        "other seed": lambda: make(seed=7, **settings).fit(data, epochs=4, batch_size=8),
        "other size": lambda: make(**settings).fit((data[0][:9], data[1][:9]), epochs=4, batch_size=8),
        "other precision": lambda: make(precision="bf16", **settings).fit(data, epochs=4, batch_size=8),
        "no data": lambda: make(**settings).fit((data[0][:0], data[1][:0]), epochs=4, batch_size=8),
        "no such folder": lambda: make(**settings).fit(
            data, epochs=4, batch_size=8, resume=folder / "missing"
        ),
        "one-shot evaluation": lambda: make(**settings).fit(
            data, epochs=5, batch_size=8, eval_data=OneShot(data)
        ),
        "data that fail": lambda: make(**settings).fit([(1, 2), 3], epochs=4),
    }


REASONS = [
    "never",
    "fewer epochs",
    "no epochs",
    "other model",
    "other seed",
    "other size",
    "other precision",
    "no data",
    "no such folder",
    "one-shot evaluation",
    "data that fail",
]


@pytest.mark.parametrize("reason", REASONS)
def test_a_start_that_is_refused_changes_nothing(make, data, tmp_path, reason):
    folder = tmp_path / "run"
    make(checkpoint_dir=folder, monitor=None).fit(data, epochs=3, batch_size=8)
    before = content_of(folder)
    with pytest.raises((FlodlError, TypeError)):
        refused(make, data, folder)[reason]()
    assert content_of(folder) == before


@pytest.mark.parametrize("resume", ["must", True])
def test_resuming_in_a_folder_that_does_not_exist_does_not_create_it(make, data, tmp_path, resume):
    with pytest.raises(TrainError, match="needs a saved run, but checkpoint_dir"):
        make(checkpoint_dir=tmp_path / "a" / "run", monitor=None).fit(
            data, epochs=1, batch_size=8, resume=resume
        )
    assert content_of(tmp_path) == {}


def test_a_refused_start_calls_no_hook(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    called = []

    class Any:
        def on_start(self):
            called.append("on_start")

        def on_end(self):
            called.append("on_end")

    with pytest.raises(TrainError, match="resume='never'"):
        make(checkpoint_dir=tmp_path, hooks=[Any()]).fit(data, epochs=3, batch_size=8, resume="never")
    assert called == []


def test_a_monitor_that_cannot_be_opened_leaves_the_record_as_it_was(make, data, tmp_path):
    make(checkpoint_dir=tmp_path / "run").fit(data, epochs=1, batch_size=8)
    before = content_of(tmp_path)
    ended = Monitor(1, console=False)
    ended.finish()
    for folder in (tmp_path / "run", tmp_path / "new" / "run"):
        with pytest.raises(FlodlError, match="the run has finished"):
            make(checkpoint_dir=folder, monitor=ended).fit(data, epochs=2, batch_size=8)
        assert content_of(tmp_path) == before


def test_a_run_with_nothing_left_to_train_keeps_its_record(make, data, tmp_path, capsys):
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8)
    before = content_of(tmp_path)
    capsys.readouterr()
    result = make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8)
    assert (result.status, len(result.history)) == ("finished", 2)
    assert content_of(tmp_path) == before
    assert "nothing is left to train: 2 epochs are done" in capsys.readouterr().out


def test_what_is_reported_before_a_run_begins_is_in_its_journal(make, data, tmp_path):
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8)
    kinds = [entry.event.kind for entry in read(tmp_path)]
    assert kinds.count("run_start") == kinds.count("run_end") == 2
    alerts = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
    assert alerts == ["resumed after 3 updates, 1 epoch done"]


def test_a_custom_loop_that_takes_its_own_batches_is_recorded(make, data, tmp_path):
    trainer = make(checkpoint_dir=tmp_path, monitor=None)
    with trainer.running(1):
        trainer.step(*data)
        assert (tmp_path / "config.json").exists()
    assert [entry.event.kind for entry in read(tmp_path)][-1] == "run_end"
