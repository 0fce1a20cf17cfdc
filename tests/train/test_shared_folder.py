"""Several runs in one folder: they neither mix nor continue each other by accident."""

import pytest

import flodl
from flodl import Loader
from flodl.core import TrainError


@pytest.fixture
def fit(make, data, tmp_path):
    """Return a function that fits a new trainer in the same folder, after seeding."""

    def run(seed, *, epochs=1):
        trainer = make(checkpoint_dir=tmp_path)
        flodl.manual_seed(seed)
        return trainer.fit(data, epochs=epochs, batch_size=8)

    return run


def test_a_loop_over_seeds_in_one_folder_is_an_error(fit):
    fit(0)
    assert fit(0).steps == 3  # nothing is left to train
    with pytest.raises(TrainError, match=r"another Trainer of this program trained with seed 0.*/seed-1'"):
        fit(1)
    assert fit(1, epochs=2).steps == 6  # more epochs of the same run


def test_a_finished_run_of_another_process_says_that_its_seed_was_another_one(fit, capsys, monkeypatch):
    monkeypatch.setattr("flodl.train.saving.run_folder.identity.PROCESS", "another process")
    fit(0)
    monkeypatch.undo()
    fit(1)
    assert "not from those of this program: the seed is now 1, was 0" in capsys.readouterr().err


def test_a_save_from_before_the_first_update_is_not_called_resumed(make, data, tmp_path, capsys):
    trainer = make(checkpoint_dir=tmp_path, monitor=None)
    with trainer.running(1):
        trainer.loader(data, 8)
        trainer.save()
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=1, batch_size=8)
    out = capsys.readouterr().out
    assert "resumed after" not in out
    assert "starts with a save from before the first update" in out


def test_two_trainers_in_one_folder_do_not_mix_their_saves(make, data, tmp_path):
    one, other = make(checkpoint_dir=tmp_path), make(checkpoint_dir=tmp_path)
    for trainer in (one, other):
        for batch in Loader(data, 8):
            trainer.step(batch)
    one.save()
    with pytest.raises(TrainError, match="contains a run up to step 3, but this run starts from scratch"):
        other.save()
    one.save()
