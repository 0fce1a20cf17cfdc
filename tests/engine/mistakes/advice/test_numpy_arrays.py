"""NumPy arrays in place of tensors: every layer gets the same error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flodl import FlowBuilder, TrainStep
from flodl.engine.errors import StepFunctionError

ADVICE = "Convert the batch to tensors: torch.as_tensor(x)."


class Scaled(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.weight = layer, nn.Parameter(torch.ones(1))

    def forward(self, x):
        out = self.layer(x)
        return (out[0] if isinstance(out, tuple) else out).flatten(1).sum(1) * self.weight


class Written(nn.Module):
    def forward(self, x):
        return x.unsqueeze(1)


class Means(nn.Module):
    def forward(self, x):
        return x.mean(dim=1, keepdim=True)


def error_of(model: nn.Module, *batch) -> Exception:
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, x, y: (model(x) - torch.as_tensor(y)).square().mean(),
        tier="eager",
    )
    with pytest.raises((StepFunctionError, AttributeError, TypeError)) as raised:
        step(*batch)
    return raised.value


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 2), (8, 4)),
        (nn.Conv1d(4, 2, 1), (8, 4, 3)),
        (nn.Conv2d(1, 2, 3), (8, 1, 6, 6)),
        (nn.LayerNorm(4), (8, 4)),
        (nn.BatchNorm1d(4), (8, 4)),
        (nn.GroupNorm(2, 4), (8, 4)),
        (nn.GRU(4, 2, batch_first=True), (8, 5, 4)),
        (nn.LSTM(4, 2), (8, 5, 4)),
        (nn.TransformerEncoderLayer(4, 2), (8, 5, 4)),
        (nn.Flatten(), (8, 4)),
        (nn.Unflatten(1, (2, 2)), (8, 4)),
        (nn.Softmax(1), (8, 4)),
        (nn.Upsample(scale_factor=2), (8, 1, 4, 4)),
        (Written(), (8, 4)),
        (Means(), (8, 4)),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (8, 4)),
        (FlowBuilder(nn.Conv2d(1, 2, 3)).through(nn.Flatten()).build(), (8, 1, 6, 6)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_arrays_are_to_be_converted_whatever_the_layer(layer: nn.Module, shape: tuple[int, ...]) -> None:
    error = error_of(Scaled(layer), np.zeros(shape, "float32"), np.zeros(8, "float32"))
    assert isinstance(error, StepFunctionError)
    assert str(error).endswith(ADVICE)
    assert "expected one of" not in str(error)


@pytest.mark.parametrize("layer", [nn.Embedding(5, 2), nn.EmbeddingBag(5, 2)])
def test_arrays_of_integers_are_to_be_converted(layer: nn.Module) -> None:
    error = error_of(Scaled(layer), np.zeros((8, 4), "int64"), np.zeros(8, "float32"))
    assert isinstance(error, StepFunctionError)
    assert str(error).endswith(ADVICE)


def test_an_array_in_the_step_function_is_to_be_converted() -> None:
    model = nn.Linear(4, 1)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x.float()).mean(), tier="eager"
    )
    with pytest.raises(StepFunctionError, match="Convert the batch to tensors"):
        step(np.zeros((8, 4)))


def test_an_array_of_the_model_is_not_blamed_on_the_batch() -> None:
    class Table(nn.Module):
        def forward(self, x):
            return np.ones(4).unsqueeze(0)

    error = error_of(Scaled(Table()), torch.zeros(8, 4), np.zeros(8, "float32"))
    assert type(error) is AttributeError


def test_a_wrong_call_of_a_method_is_not_blamed_on_arrays() -> None:
    class Calls(nn.Module):
        def helper(self, x):
            return x

        def forward(self, x):
            return self.helper(x, 1)

    error = error_of(Scaled(Calls()), torch.zeros(8, 4), np.zeros(8, "float32"))
    assert ADVICE not in str(error)
