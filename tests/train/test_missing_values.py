"""A named value that the step function no longer returns is left out of the rows, and noted once."""

import math

import pytest
import torch
from torch import nn

from flodl import Trainer


def with_error(model, x, y):
    error = model(x) - y
    return error.square().mean(), {"error": error.abs().mean()}


def without_error(model, x, y):
    return with_error(model, x, y)[0]


def test_a_value_that_a_resumed_step_function_lacks_is_left_out(make, data, tmp_path, capsys):
    make(step_fn=with_error, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=5)
    capsys.readouterr()
    result = make(step_fn=without_error, checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=5)
    assert ["error" in row for row in result.history] == [True, False, False]
    printed = capsys.readouterr()
    assert printed.out.count("the step function did not return 'error' in epoch 2") == 1
    assert "nan" not in printed.err


def test_a_value_that_some_epochs_lack_is_left_out_of_those(data, capsys):
    model, epochs = nn.Linear(3, 1), [0]

    def step_fn(model, x, y):
        return (without_error if epochs[0] == 1 else with_error)(model, x, y)

    def on_epoch_end(epoch):
        epochs[0] = epoch + 1

    trainer = Trainer(
        model,
        step_fn,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
        hooks=[on_epoch_end],
    )
    history = trainer.fit(data, epochs=3, batch_size=5).history
    assert ["error" in row for row in history] == [True, False, True]
    assert capsys.readouterr().out.count("did not return 'error' in epoch 2") == 1


def test_a_value_that_is_nan_is_shown(make, data):
    def step_fn(model, x, y):
        return without_error(model, x, y), {"error": torch.tensor(math.nan)}

    history = make(step_fn=step_fn).fit(data, epochs=1, batch_size=5).history
    assert math.isnan(history[0]["error"])


@pytest.mark.parametrize("changes", [False, True])
def test_a_value_of_a_part_of_an_epoch_is_left_out_after_a_resume(make, data, tmp_path, capsys, changes):
    def renamed(model, x, y):
        loss, values = with_error(model, x, y)
        return loss, {"deviation" if changes else "error": values["error"]}

    def on_step_end(trainer, step):
        if step == 2:
            trainer.stop("a part of the epoch is enough")

    make(step_fn=with_error, checkpoint_dir=tmp_path, hooks=[on_step_end]).fit(data, epochs=1, batch_size=5)
    capsys.readouterr()
    result = make(step_fn=renamed, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    names = [set(row) & {"error", "deviation"} for row in result.history]
    assert names == ([set(), {"deviation"}] if changes else [{"error"}, {"error"}])
    note = "the step function returned 'error' and 'deviation' for only a part of epoch 1"
    assert (note in capsys.readouterr().out) is changes
