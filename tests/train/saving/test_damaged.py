"""Damaged bundles are named, kept, and never in the way."""

import pytest

from flodl import load_checkpoint
from flodl.checkpoint import last
from flodl.core import DamagedError, TrainError


def damage(folder, file="rng.fdl"):
    """Spoil a file without changing its length."""
    with (folder / file).open("r+b") as handle:
        handle.write(bytes(20))


def bundles_in(folder):
    return sorted(path.name for path in (folder / "bundles").iterdir())


@pytest.fixture
def spoiled(make, data, tmp_path):
    """A run of two bundles, neither of them whole."""
    make(checkpoint_dir=tmp_path / "run").fit(data, epochs=2, batch_size=8)
    for bundle in (tmp_path / "run" / "bundles").iterdir():
        damage(bundle)
    return tmp_path / "run"


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_where_no_bundle_is_whole_nothing_begins_and_each_is_named(make, data, spoiled, resume):
    before = bundles_in(spoiled)
    words = (
        "contains 2 bundles, none of them intact: .*step-00000006/rng.fdl' is damaged: .*; "
        ".*step-00000003/rng.fdl' is damaged: .* The weights of step-00000006 are intact: "
        ".*load_checkpoint.*step-00000006/model.fdl'.*resume='never'"
    )
    with pytest.raises(TrainError, match=words):
        make(checkpoint_dir=spoiled).fit(data, epochs=3, batch_size=8, resume=resume)
    assert bundles_in(spoiled) == before
    model = make().model
    load_checkpoint(spoiled / "bundles" / "step-00000006" / "model.fdl", model.state_dict())


def test_weights_that_are_not_whole_are_not_offered(make, data, spoiled):
    for bundle in (spoiled / "bundles").iterdir():
        damage(bundle, "model.fdl")
    with pytest.raises(TrainError, match=r"None of them has an intact model\.fdl"):
        make(checkpoint_dir=spoiled).fit(data, epochs=3, batch_size=8)


def test_a_run_that_starts_from_a_damaged_one_is_told_what_is_wrong(make, data, spoiled, tmp_path):
    with pytest.raises(TrainError, match="contains 2 bundles, none of them intact"):
        make(checkpoint_dir=tmp_path / "new").fit(data, epochs=3, batch_size=8, resume=spoiled)


def test_a_damaged_folder_is_not_restarted_from_another(make, data, spoiled, tmp_path):
    make(checkpoint_dir=tmp_path / "other").fit(data, epochs=1, batch_size=8)
    with pytest.raises(TrainError, match="none of them intact"):
        make(checkpoint_dir=spoiled).fit(data, epochs=3, batch_size=8, resume=tmp_path / "other")


def test_never_starts_from_scratch_and_keeps_damaged_bundles(make, data, spoiled, capsys):
    for _ in range(2):
        make(checkpoint_dir=spoiled).fit(data, epochs=2, batch_size=8, resume="never")
        for bundle in (spoiled / "bundles").iterdir():
            damage(bundle)
    assert "moved damaged bundles to" in capsys.readouterr().err
    kept = sorted(path.name for path in (spoiled / "bundles.damaged").iterdir())
    assert kept == ["step-00000003", "step-00000003-2", "step-00000006", "step-00000006-2"]
    assert bundles_in(spoiled) == ["step-00000003", "step-00000006"]


def test_a_damaged_bundle_does_not_outlive_whole_ones(make, data, tmp_path):
    def on_step_end(trainer, step):
        if step == 7:
            trainer.stop("mine")

    make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    damage(tmp_path / "bundles" / "step-00000009")
    settings = {"checkpoint_dir": tmp_path, "keep": last(1)}
    make(hooks=[on_step_end], save_every_steps=1, **settings).fit(data, epochs=3, batch_size=8)
    assert bundles_in(tmp_path) == ["step-00000007"]
    assert [path.name for path in (tmp_path / "bundles.damaged").iterdir()] == ["step-00000009"]
    result = make(**settings).fit(data, epochs=3, batch_size=8)
    assert result.history == make().fit(data, epochs=3, batch_size=8).history


def test_a_chosen_bundle_that_is_damaged_is_refused(make, data, spoiled):
    with pytest.raises(DamagedError, match=r"step-00000003/rng\.fdl' is damaged"):
        make().fit(data, epochs=3, batch_size=8, resume=spoiled / "bundles" / "step-00000003")
