"""The seed of a trainer, next to a loader that has another one."""

import json

import pytest
import torch

import flodl
from flodl import Loader
from flodl.core import CursorError, TrainError
from flodl.data import Normalize, RandomFlip


def unshuffled(data, seed=None):
    """Return a loader with another seed than that of the trainers here."""
    flodl.manual_seed(1)
    loader = Loader(data, 8, shuffle=False, seed=seed)
    assert loader.seed == seed or (seed is None and loader.seed == 1)
    return loader


def losses(trainer, loader):
    return [row["loss"] for row in trainer.fit(loader, epochs=2).history]


@pytest.mark.parametrize("seed", [None, 3])
def test_it_may_differ_where_it_decides_nothing(make, data, seed):
    expected = losses(make(), unshuffled(data))
    assert losses(make(seed=0), unshuffled(data, seed)) == expected


@pytest.mark.parametrize("augment", [None, [Normalize([0.5], [0.1]), RandomFlip()]])
def test_it_may_not_where_the_loader_draws(make, augment):
    images = torch.rand(8, 1, 8, 8)
    flodl.manual_seed(1)
    loader = Loader(images, 4, shuffle=augment is None, augment=augment)
    with pytest.raises(TrainError, match=r"Trainer\(seed=0\) with a Loader whose seed is 1"):
        make(seed=0).fit(loader, epochs=1)


@pytest.mark.parametrize("seeds", [(None, None), (1, 1), (1, 2)])
def test_a_run_with_an_unshuffled_loader_is_resumed(make, data, tmp_path, seeds, capsys):
    expected = losses(make(seed=0), unshuffled(data))
    make(seed=0, checkpoint_dir=tmp_path).fit(unshuffled(data, seeds[0]), epochs=1)
    result = make(seed=0, checkpoint_dir=tmp_path).fit(unshuffled(data, seeds[1]), epochs=2)
    assert [row["loss"] for row in result.history] == expected
    assert "seed" not in capsys.readouterr().err


def test_a_run_that_was_drawn_with_another_seed_is_not_resumed(make, data, tmp_path):
    make(seed=0, checkpoint_dir=tmp_path).fit(Loader(data, 8, seed=0), epochs=1)
    with pytest.raises(CursorError, match=r"drawn with seed 0, and this is Trainer\(seed=1\)"):
        make(seed=1, checkpoint_dir=tmp_path).fit(Loader(data, 8, seed=1), epochs=2)


def test_a_loop_over_seeds_in_one_folder_is_an_error_without_a_shuffled_loader_too(
    make, data, tmp_path, capsys
):
    def fit(seed, epochs=1):
        trainer = make(seed=seed, checkpoint_dir=tmp_path)
        return trainer.fit(unshuffled(data), epochs=epochs)

    fit(0)
    assert fit(0).steps == 3  # nothing is left to train
    with pytest.raises(TrainError, match=r"another Trainer of this program trained with seed 0.*/seed-1'"):
        fit(1)
    fit(1, epochs=2)
    assert "seed is now 1, was 0" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [None, 7])
def test_the_record_has_the_seed_of_the_trainer(make, data, tmp_path, seed):
    make(seed=seed, checkpoint_dir=tmp_path).fit(unshuffled(data), epochs=1)
    recorded = json.loads((tmp_path / "config.json").read_text())
    assert recorded["trainer"]["seed"] == (1 if seed is None else seed)


def test_dropout_on_several_devices_has_the_seed_of_the_trainer(make, data, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(payload, path):
        raise Stopped(payload.seed)

    monkeypatch.setattr("flodl.train.ranks.fit.write_payload", stop)
    for settings, seed in (({"seed": 5}, 5), ({}, 1)):
        trainer = make(device="auto", devices=["cpu", "cpu"], **settings)
        with pytest.raises(Stopped, match=rf"^{seed}$"):
            trainer.fit(unshuffled(data), epochs=1)
