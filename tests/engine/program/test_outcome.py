"""Named values of the step function, for whole batches and for pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep


def new_step(step_fn, **settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def test_an_async_step_function_raises():
    async def step_fn(model, x, y):
        return model(x).sum()

    with pytest.raises(StepError, match=r"returned a coroutine, which is not a loss: .* Write a plain func"):
        new_step(step_fn)(torch.ones(3, 4), torch.ones(3, 2))


def named(model, x, y):
    out = model(x)
    values = {
        "scalar": x.mean(),
        "number": 3,
        "rows": x,
        "is_big": x[:, 0] > 0,
        "column": x.mean(0),
    }
    return nn.functional.mse_loss(out, y), values


def hungry(model, x, y):
    if len(x) > 2:
        raise torch.OutOfMemoryError("a small device")
    return named(model, x, y)


@pytest.mark.parametrize("size", [5, 8])
def test_values_of_pieces_are_those_of_the_whole(size: int) -> None:
    x, y = torch.randn(size, 4), torch.randn(size, 2)
    whole, cut = new_step(named), new_step(hungry)
    torch.testing.assert_close(cut(x, y), whole(x, y))
    for name, value in whole.values.items():
        torch.testing.assert_close(cut.values[name], value, check_dtype=name != "number")
    assert cut.means().keys() == whole.means().keys()


def test_an_output_before_the_loss_is_an_error_that_states_the_order() -> None:
    step = new_step(lambda model, x: (model(x), model(x).mean()))
    expected = r"The loss comes first: instead of \(output, loss\), return \(loss, {'output': output}\)"
    with pytest.raises(StepError, match=expected):
        step(torch.ones(3, 4))


def test_values_of_any_shape_do_not_break_a_step() -> None:
    def odd(model, x, y):
        loss, _ = hungry(model, x, y)
        values = {"odd": x[x > 0]}
        if x[0, 0] > 0:
            values["sometimes"] = x.mean()
        return loss, values

    x = torch.arange(-10.0, 10.0).reshape(5, 4)
    step = new_step(odd)
    step(x, torch.zeros(5, 2))
    assert step.values["odd"].dim() == 1
    assert step.values["sometimes"] == x[4:].mean()


def test_a_name_that_is_not_a_string_is_refused() -> None:
    step = new_step(lambda m, x: (m(x).sum(), {0: x.mean()}))
    with pytest.raises(StepError, match=r"a value named 0, which is of type int.*names that are strings"):
        step(torch.ones(3, 4))


def test_a_numpy_scalar_is_a_number() -> None:
    given = {
        "single": np.float32(0.5),
        "whole": np.int64(3),
        "truth": np.bool_(True),
        "double": np.float64(2),
        "array": np.array(2.0),
    }
    step = new_step(lambda m, x: (m(x).mean(), given))
    step(torch.ones(3, 4))
    assert {name: value.item() for name, value in step.values.items()} == given
    assert step.means()["whole"] == 3


@pytest.mark.parametrize("value", [1j, np.complex64(1j), torch.tensor(1j)], ids=["python", "numpy", "torch"])
def test_a_complex_value_is_refused(value) -> None:
    step = new_step(lambda m, x: (m(x).mean(), {"phase": value}))
    with pytest.raises(StepError, match=r"a complex value for 'phase'.*value\.real or abs\(value\)"):
        step(torch.ones(3, 4))
