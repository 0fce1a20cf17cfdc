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


class Columns(nn.Module):
    """Categorical and numeric columns, as from a table."""

    def __init__(self, layer: nn.Module, *, is_doubled: bool = False, swaps: bool = False) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(5, 6), layer
        self.is_doubled, self.swaps = is_doubled, swaps

    def forward(self, cat, num):
        if self.swaps:
            return self.layer(cat[:, None].expand(8, 6)) + num
        out = self.layer(num * 2 if self.is_doubled else num)
        return self.embedding(cat) + (out[0] if isinstance(out, tuple) else out)


def columns(model, cat, num, y):
    return F.mse_loss(model(cat, num).mean(1), y)


CATEGORIES, NUMBERS, TARGETS = torch.zeros(8, dtype=torch.long), torch.rand(8, 6), torch.rand(8)
NUMERIC_LAYERS = [
    nn.BatchNorm1d(6),
    nn.LayerNorm(6),
    nn.Linear(6, 6),
    nn.GRU(6, 6),
    nn.Conv1d(8, 8, 1),
    nn.GroupNorm(2, 6),
]


@pytest.mark.parametrize("is_doubled", [False, True], ids=["passed", "computed"])
@pytest.mark.parametrize("layer", NUMERIC_LAYERS, ids=lambda layer: type(layer).__name__)
def test_float64_part_is_named_and_not_the_integers_beside_it(layer: nn.Module, is_doubled: bool) -> None:
    model = Columns(layer, is_doubled=is_doubled)
    message = message_of(columns, model, (CATEGORIES, NUMBERS.double(), TARGETS))
    assert "Convert the data once: num.to(torch.float32). NumPy's floats are float64" in message
    assert "cat.float()" not in message
    assert "Embedding" not in message


def test_all_float64_parts_are_named() -> None:
    batch = {"cat": CATEGORIES, "num": NUMBERS.double(), "y": TARGETS.double()}
    message = message_of(lambda model, b: columns(model, **b), Columns(nn.BatchNorm1d(6)), (batch,))
    assert "Convert the data once: b['num'].to(torch.float32) and b['y'].to(torch.float32)." in message


def test_integers_that_a_norm_got_are_named_beside_a_float64_part() -> None:
    model = Columns(nn.BatchNorm1d(6), swaps=True)
    message = message_of(columns, model, (CATEGORIES, NUMBERS.double(), TARGETS))
    assert "'layer' (BatchNorm1d) takes float32, but cat is int64: pass cat.float()." in message


def test_neither_is_named_as_certain_if_a_layer_got_integers_and_float64() -> None:
    class Norms(nn.BatchNorm1d):
        def forward(self, num, cat):
            return super().forward(num) + cat[:, None]

    class Both(Columns):
        def forward(self, cat, num):
            return self.layer(num, cat)

    message = message_of(columns, Both(Norms(6)), (CATEGORIES, NUMBERS.double(), TARGETS))
    assert "'layer' (Norms) takes float32, but got tensors of other dtypes." in message
    assert "num.to(torch.float32)" in message
    assert "cat.float()" not in message


def test_float64_that_the_model_computes_is_not_blamed_on_the_batch() -> None:
    model = Columns(nn.BatchNorm1d(6))
    model.layer.register_forward_pre_hook(lambda module, args: args[0].double())
    message = message_of(columns, model, (CATEGORIES, NUMBERS, TARGETS))
    assert "cat.float()" not in message
    assert "num.to(" not in message


def test_of_several_integer_parts_the_one_that_the_layer_got_is_named() -> None:
    message = message_of(columns, Columns(nn.Linear(6, 6)), (CATEGORIES, NUMBERS.long(), TARGETS))
    assert "'layer' (Linear) takes float32, but num is int64: pass num.float()." in message
