"""The values that a graph carries from batch to batch start again where the data does."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader
from flodl.nn import StateAdd

NUM_STREAMS, NUM_STEPS = 8, 12


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor


def running_sum():
    """Return a graph whose output for a row is the sum of this row in all batches so far."""
    return FlowBuilder().through(StateAdd()).using("memory").tag("memory").through(Scale()).build()


def streams():
    """Return one batch per time step; the targets are the running sums of an epoch."""
    x = torch.ones(NUM_STEPS * NUM_STREAMS, 1)
    y = torch.arange(1.0, NUM_STEPS + 1).repeat_interleave(NUM_STREAMS)[:, None]
    return Loader((x, y), NUM_STREAMS, shuffle=False)


def square(model, x, y):
    return (model(x) - y).square().mean()


def sgd(groups):
    return torch.optim.SGD(groups, lr=1e-9)


def test_each_epoch_of_training_starts_with_nothing_carried(make):
    result = make(running_sum(), square, optimizer=sgd).fit(streams(), epochs=3, eval_data=streams())
    assert [row["loss"] for row in result.history] == pytest.approx([0.0] * 3, abs=1e-6)
    assert [row["eval_loss"] for row in result.history] == pytest.approx([0.0] * 3, abs=1e-6)


def test_each_epoch_of_a_loop_and_of_a_second_fit_starts_with_nothing_carried(make):
    trainer = make(running_sum(), square, optimizer=sgd)
    for _ in range(2):
        for batch in trainer.epoch(streams()):
            trainer.step(batch)
    trainer.fit(streams(), epochs=3)
    assert [row["loss"] for row in trainer.history] == pytest.approx([0.0] * 3, abs=1e-6)


def test_a_hook_at_the_start_of_an_epoch_may_set_what_is_carried(make):
    model = running_sum()

    def on_epoch_start():
        assert model(torch.ones(NUM_STREAMS, 1)).eq(1.0).all()

    result = make(model, square, optimizer=sgd, hooks=[on_epoch_start]).fit(streams(), epochs=2)
    assert [row["loss"] for row in result.history] == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("stop_at", [5, NUM_STEPS, NUM_STEPS + 5])
def test_a_run_with_carried_state_that_is_resumed_equals_one_never_stopped(make, tmp_path, stop_at):
    def fast(groups):
        return torch.optim.SGD(groups, lr=1e-3)

    def on_step_end(trainer, step):
        if step == stop_at:
            trainer.save()
            trainer.stop("test")

    whole = make(running_sum(), square, optimizer=fast)
    whole.fit(streams(), epochs=3)
    options = {"optimizer": fast, "checkpoint_dir": tmp_path}
    make(running_sum(), square, hooks=[on_step_end], **options).fit(streams(), epochs=3)
    resumed = make(running_sum(), square, **options)
    resumed.fit(streams(), epochs=3)
    assert resumed.updates == whole.updates == 3 * NUM_STEPS
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]
    assert [*map(torch.equal, resumed.model.parameters(), whole.model.parameters())] == [True]
