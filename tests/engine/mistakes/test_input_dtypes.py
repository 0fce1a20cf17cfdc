"""A tensor with the wrong dtype: the error names it, and how to convert it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError

X, LABELS = torch.rand(8, 4), torch.zeros(8, dtype=torch.long)


def message_of(step_fn, model: nn.Module, batch) -> str:
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    with pytest.raises(StepFunctionError) as raised:
        step(*batch)
    return str(raised.value)


def classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 3))


def test_float_input_of_an_embedding_is_to_be_converted_to_integers() -> None:
    message = message_of(classes, embedding(), (X, LABELS))
    assert "Indices, such as nn.Embedding inputs, must be integers: pass x.long()." in message
    assert "y.float()" not in message


def test_a_part_of_a_dict_is_named_by_its_key() -> None:
    message = message_of(
        lambda model, b: classes(model, b["x"], b["y"]), embedding(), ({"x": X, "y": LABELS},)
    )
    assert "pass b['x'].long()" in message


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 3), (8, 4)),
        (nn.Conv2d(1, 3, 2), (8, 1, 2, 2)),
        (nn.BatchNorm1d(4), (8, 4)),
        (nn.LayerNorm(4), (8, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bytes_as_input_of_a_float_layer_point_at_the_input(layer: nn.Module, shape) -> None:
    images = torch.zeros(shape, dtype=torch.uint8)
    message = message_of(classes, nn.Sequential(layer, nn.Flatten()), (images, LABELS))
    name = type(layer).__name__
    assert message.endswith(
        f"'0' ({name}) takes float32, but x is uint8: pass x.float(), or x.float() / 255 for images."
    )


def test_a_view_of_the_input_is_recognized() -> None:
    images = torch.zeros(8, 1, 2, 2, dtype=torch.uint8)
    message = message_of(
        lambda model, x, y: classes(model, x.flatten(1), y), nn.Linear(4, 3), (images, LABELS)
    )
    assert "Linear takes float32, but x is uint8" in message


@pytest.mark.parametrize("model", [nn.Linear(4, 3), nn.Sequential(nn.GRUCell(4, 3))])
def test_integers_as_input_of_a_float_layer_point_at_the_input(model: nn.Module) -> None:
    message = message_of(classes, model, (X.long(), LABELS))
    assert "x is int64: pass x.float(). Tokens and other indices go through an nn.Embedding" in message


def test_integers_that_the_model_computes_are_not_blamed_on_the_batch() -> None:
    class Rounds(nn.Linear):
        def forward(self, x):
            return super().forward(x.round().long())

    message = message_of(classes, Rounds(4, 3), (X, LABELS))
    assert "Rounds takes float32, but its input is an integer tensor: convert it with x.float()." in message
    assert "y is int64:" not in message


def test_float_class_indices_are_to_be_converted_and_nothing_else() -> None:
    message = message_of(classes, nn.Linear(4, 3), (X, LABELS.float()))
    assert message.endswith(
        "Class indices, such as cross_entropy targets, must be int64 (torch.long): y.long()."
    )
