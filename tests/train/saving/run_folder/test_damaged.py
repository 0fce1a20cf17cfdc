"""Damaged bundles are reported, kept, and moved out of the way."""

import pytest

from flodl import load_checkpoint
from flodl.checkpoint import last
from flodl.core import DamagedError, TrainError


def damage(folder, file="rng.fdl"):
    """Damage a file without changing its length."""
    with (folder / file).open("r+b") as handle:
        handle.write(bytes(20))


def bundles_in(folder):
    return sorted(path.name for path in (folder / "bundles").iterdir())


@pytest.fixture
def damaged_run(make, data, tmp_path):
    """A run with two bundles, neither of them intact."""
    make(checkpoint_dir=tmp_path / "run").fit(data, epochs=2, batch_size=8)
    for bundle in (tmp_path / "run" / "bundles").iterdir():
        damage(bundle)
    return tmp_path / "run"


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_without_an_intact_bundle_no_run_starts_and_each_bundle_is_named(make, data, damaged_run, resume):
    before = bundles_in(damaged_run)
    words = (
        "contains 2 bundles, none of them intact: .*step-00000006/rng.fdl' is damaged: .*; "
        ".*step-00000003/rng.fdl' is damaged: .* The weights of step-00000006 are intact: "
        ".*load_checkpoint.*step-00000006/model.fdl'.*resume='never'"
    )
    with pytest.raises(TrainError, match=words):
        make(checkpoint_dir=damaged_run).fit(data, epochs=3, batch_size=8, resume=resume)
    assert bundles_in(damaged_run) == before
    model = make().model
    load_checkpoint(damaged_run / "bundles" / "step-00000006" / "model.fdl", model.state_dict())


def test_intact_weights_are_offered_if_another_file_has_a_different_length(make, data, damaged_run):
    for bundle in (damaged_run / "bundles").iterdir():
        (bundle / "config.json").write_text("{}")
    with pytest.raises(TrainError, match="The weights of step-00000006 are intact"):
        make(checkpoint_dir=damaged_run).fit(data, epochs=3, batch_size=8)


def test_damaged_weights_are_not_offered(make, data, damaged_run):
    for bundle in (damaged_run / "bundles").iterdir():
        damage(bundle, "model.fdl")
    with pytest.raises(TrainError, match=r"None of them has an intact model\.fdl"):
        make(checkpoint_dir=damaged_run).fit(data, epochs=3, batch_size=8)


def test_starting_from_a_damaged_run_describes_the_damage(make, data, damaged_run, tmp_path):
    with pytest.raises(TrainError, match="contains 2 bundles, none of them intact"):
        make(checkpoint_dir=tmp_path / "new").fit(data, epochs=3, batch_size=8, resume=damaged_run)


def test_a_damaged_folder_is_not_restarted_from_another(make, data, damaged_run, tmp_path):
    make(checkpoint_dir=tmp_path / "other").fit(data, epochs=1, batch_size=8)
    with pytest.raises(TrainError, match="none of them intact"):
        make(checkpoint_dir=damaged_run).fit(data, epochs=3, batch_size=8, resume=tmp_path / "other")


def test_resume_never_starts_from_scratch_and_keeps_damaged_bundles(make, data, damaged_run, capsys):
    for _ in range(2):
        make(checkpoint_dir=damaged_run).fit(data, epochs=2, batch_size=8, resume="never")
        for bundle in (damaged_run / "bundles").iterdir():
            damage(bundle)
    assert "moved damaged bundles to" in capsys.readouterr().err
    kept = sorted(path.name for path in (damaged_run / "bundles.damaged").iterdir())
    assert kept == ["step-00000003", "step-00000003-2", "step-00000006", "step-00000006-2"]
    assert bundles_in(damaged_run) == ["step-00000003", "step-00000006"]


def test_a_damaged_bundle_does_not_outlive_intact_ones(make, data, tmp_path):
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


def test_a_chosen_bundle_that_is_damaged_is_rejected(make, data, damaged_run):
    with pytest.raises(DamagedError, match=r"step-00000003/rng\.fdl' is damaged"):
        make().fit(data, epochs=3, batch_size=8, resume=damaged_run / "bundles" / "step-00000003")
