"""Graphs that carry values from batch to batch, on several devices."""

import pytest
import torch

from flodl import Loader

from ..test_carried_state import running_sum, sgd, square, streams

WARNING = "each device trains only some of the batches"


def test_with_sync_each_epoch_starts_with_nothing_carried_as_on_one_device(make, capsys):
    result = make(running_sum(), square, optimizer=sgd, policy="sync").fit(streams(), epochs=2)
    assert [row["loss"] for row in result.history] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert "carries values" not in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_devices_that_train_different_batches_are_reported_for_a_carried_state(make, capsys, policy):
    make(running_sum(), square, optimizer=sgd, policy=policy).fit(streams(), epochs=2)
    told = capsys.readouterr().err
    assert told.count(WARNING) == 1
    assert f"policy={policy!r}" in told
    assert "policy='sync'" in told


def test_devices_are_not_reported_if_the_step_function_resets_the_state_or_there_is_only_one(make, capsys):
    def from_zero(model, x, y):
        model.reset_state()
        return square(model, x, y)

    make(running_sum(), from_zero, optimizer=sgd).fit(streams(), epochs=1)
    make(running_sum(), square, optimizer=sgd, devices=["cpu"]).fit(streams(), epochs=1)
    make().fit(Loader((torch.ones(16, 4), torch.ones(16, 1)), 4), epochs=1)
    assert "carries values" not in capsys.readouterr().err


def test_with_sync_an_epoch_that_is_resumed_reports_that_nothing_is_carried(make, tmp_path, capsys):
    def on_step_end(trainer, step):
        if step == 5:
            trainer.save()
            trainer.stop("test")

    options = {"optimizer": sgd, "checkpoint_dir": tmp_path}
    make(running_sum(), square, device="cpu", hooks=[on_step_end], **options).fit(streams(), epochs=2)
    make(running_sum(), square, policy="sync", **options).fit(streams(), epochs=2)
    assert capsys.readouterr().err.count("the carried values are not saved") == 1
