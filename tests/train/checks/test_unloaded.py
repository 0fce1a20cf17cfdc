"""Evaluating a new trainer whose folder has the saves of a run."""

import pytest

from flodl.checkpoint import list_bundles, load_checkpoint

from ..conftest import small_model


@pytest.fixture
def folder(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, eval_data=data)
    return tmp_path


@pytest.fixture
def printed(capsys):
    def read():
        found = capsys.readouterr()
        return found.out + found.err

    return read


@pytest.mark.parametrize("monitor", [None, False])
def test_weights_that_were_not_loaded_are_reported_once(make, data, folder, printed, monitor):
    trainer = make(checkpoint_dir=folder, monitor=monitor)
    trainer.evaluate(data)
    assert "call trainer.restore_best()" in printed()
    trainer.evaluate(data)
    assert "restore_best" not in printed()


def test_weights_of_a_save_are_not_reported(make, data, folder, printed):
    restored = make(checkpoint_dir=folder, monitor=None)
    restored.restore_best()
    resumed = make(checkpoint_dir=folder, monitor=None)
    resumed.resume(data, 8)
    model = small_model()
    load_checkpoint(list_bundles(folder / "bundles")[-1].path / "model.fdl", model.state_dict())
    for trainer in (restored, resumed, make(model, checkpoint_dir=folder, monitor=None)):
        trainer.evaluate(data)
    assert "evaluate: the weights" not in printed()


@pytest.mark.parametrize("monitor", [None, False])
def test_a_folder_that_is_missing_or_empty_is_reported_once(make, data, tmp_path, printed, monitor):
    (tmp_path / "first").mkdir()
    trainer = make(checkpoint_dir=tmp_path / "frist", monitor=monitor)
    trainer.evaluate(data)
    trainer.evaluate(data)
    told = printed()
    assert told.count("does not exist, so the weights are those of the model that was passed") == 1
    assert "Did you mean 'first'?" in told
    make(checkpoint_dir=tmp_path / "first", monitor=monitor).evaluate(data)
    assert "is empty, so the weights are those of the model" in printed()


def test_an_evaluation_after_training_in_a_new_folder_is_not_reported(make, data, tmp_path, printed):
    trainer = make(checkpoint_dir=tmp_path / "new")
    trainer.fit(data, epochs=1, batch_size=8)
    trainer.evaluate(data)
    assert "evaluate:" not in printed()
