"""A run that starts from scratch does not mix its record with that of an earlier run in the folder."""

import shutil

import pytest

from flodl.monitor.exports import log_text
from flodl.monitor.journal import Journal
from flodl.monitor.server.followed import FollowedRuns
from flodl.monitor.snapshot import snapshot, summary


@pytest.fixture
def fit(make, data, tmp_path):
    """Return a function that fits a new trainer in a folder."""

    def run(name, epochs, **settings):
        trainer = make(checkpoint_dir=tmp_path / name, monitor=None, **settings.pop("trainer", {}))
        return trainer.fit(data, epochs=epochs, batch_size=8, **settings)

    return run


def epochs_in(folder):
    return [record["epoch"] for record in snapshot(folder)["history"]]


@pytest.fixture
def later_epochs(fit, tmp_path):
    """Return a folder whose journal starts with epoch 3."""
    fit("a", 2)
    fit("b", 4, resume=tmp_path / "a")
    assert epochs_in(tmp_path / "b") == [3, 4]
    return tmp_path / "b"


def test_a_run_from_scratch_has_only_its_own_epochs_in_every_view(fit, later_epochs, tmp_path, capsys):
    shutil.rmtree(later_epochs / "bundles")
    capsys.readouterr()
    result = fit("b", 1)
    assert "the journal of an earlier run in this folder is now journal-1.jsonl" in capsys.readouterr().out
    assert epochs_in(later_epochs) == [row["epoch"] for row in result.history] == [1]
    found = summary(later_epochs)
    assert (found["epoch"], found["metrics"]["loss"]["epoch"], found["changed"]) == (1, 1, {})
    assert found["metrics"]["loss"]["best"] == result.history[-1]["loss"]
    state = snapshot(later_epochs)
    assert state["metrics"]["loss"]["x"][0] <= 1
    assert state["status"]["num_starts"] == 1
    assert "epoch 3" not in log_text(later_epochs)
    # The earlier record is kept; to read it does not change the index of the new one.
    mark = (later_epochs / "journal.index" / "mark.bin").read_bytes()
    assert epochs_in(later_epochs / "journal-1.jsonl") == [3, 4]
    assert (later_epochs / "journal.index" / "mark.bin").read_bytes() == mark


def test_a_run_from_another_folder_drops_the_epochs_of_an_earlier_run_as_well(fit, tmp_path):
    fit("a", 2)
    fit("b", 4)
    shutil.rmtree(tmp_path / "b" / "bundles")
    fit("b", 3, resume=tmp_path / "a")
    assert epochs_in(tmp_path / "b") == [3]


def test_a_run_that_continues_keeps_its_journal(fit, make, data, tmp_path):
    fit("a", 1)
    fit("a", 2)
    trainer = make(checkpoint_dir=tmp_path / "c", monitor=None)
    trainer.fit(data, epochs=1, batch_size=8)
    shutil.rmtree(tmp_path / "c" / "bundles")
    trainer.fit(data, epochs=2, batch_size=8)
    for name in ("a", "c"):
        assert epochs_in(tmp_path / name) == [1, 2]
        assert not (tmp_path / name / "journal-1.jsonl").exists()


def test_a_start_that_did_not_train_stays_in_the_journal(fit, make, data, tmp_path):
    def fail(model, x, y):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        make(step_fn=fail, checkpoint_dir=tmp_path / "a", monitor=None).fit(data, epochs=1, batch_size=8)
    fit("a", 1)
    assert not (tmp_path / "a" / "journal-1.jsonl").exists()
    assert snapshot(tmp_path / "a")["status"]["num_starts"] == 2


def test_a_page_that_follows_the_folder_gets_the_new_start(fit, later_epochs):
    followed = FollowedRuns([later_epochs])
    last_id = followed.last_id
    shutil.rmtree(later_epochs / "bundles")
    fit("b", 3)
    batch = followed.poll()
    # The page reads everything again when a run starts.
    assert [entry.event.kind for entry in batch[:2]] == ["alert", "run_start"]
    assert [entry.id for entry in batch] == list(range(last_id + 1, last_id + 1 + len(batch)))
    assert sum(entry.event.kind == "epoch" for entry in batch) == 3


def test_a_journal_that_is_being_written_is_not_renamed(tmp_path):
    from flodl.monitor import Event, set_aside_earlier_run

    with Journal.open(tmp_path) as journal:
        journal.write(Event("epoch", {"epoch": 0, "metrics": {}}))
        journal.flush()
        assert set_aside_earlier_run(tmp_path) is None
    assert (tmp_path / "journal.jsonl").exists()
