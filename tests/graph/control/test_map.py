"""Maps: a body applied to rows or slices, whose results are concatenated once."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flodl import FlowBuilder
from flodl.core import ShapeError

from ..nodes import Broken, Double, Triple


class Calls(TorchDispatchMode):
    """Count the calls of one operator."""

    def __init__(self, operator) -> None:
        super().__init__()
        self.operator, self.count = operator, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is self.operator
        return func(*args, **(kwargs or {}))


def noting(seen: list[tuple[int, ...]]):
    def body(rows: Tensor) -> Tensor:
        seen.append(tuple(rows.shape))
        return rows * 2

    return body


def test_each_runs_the_body_once_per_row_and_concatenates_once():
    seen = []
    model = FlowBuilder().map(noting(seen)).each().build()
    rows = torch.randn(5, 3, 2)
    with Calls(torch.ops.aten.cat.default) as cats:
        output = model(rows)
    assert torch.equal(output, rows * 2)
    assert seen == [(1, 3, 2)] * 5
    assert cats.count == 1


def test_slices_are_concatenated_once():
    with Calls(torch.ops.aten.cat.default) as cats:
        FlowBuilder().map(Double()).slices(4).build()(torch.randn(3, 8))
    assert cats.count == 1


@pytest.mark.parametrize("end", [lambda m: m.each(), lambda m: m.slices(2)])
def test_batched_runs_the_body_once_with_the_same_result(end):
    seen = []
    rows = torch.randn(3, 4)
    linear = (
        nn.Linear(4, 4) if end(FlowBuilder().map(Double())).build().map_1.mode == "each" else nn.Linear(2, 3)
    )
    one_by_one = end(FlowBuilder().map(linear)).build()
    at_once = end(FlowBuilder().map(linear, batched=True)).build()
    torch.testing.assert_close(at_once(rows), one_by_one(rows))
    end(FlowBuilder().map(noting(seen), batched=True)).build()(rows)
    assert len(seen) == 1


def test_over_maps_a_tagged_value_which_becomes_the_stream():
    model = FlowBuilder(Double()).tag("two").through(nn.Flatten(0)).map(Triple()).over("two").build()
    rows = torch.randn(3, 2)
    torch.testing.assert_close(model(rows), 6 * rows)


@pytest.mark.parametrize("shape", [(2, 6), (2, 3, 6), (2, 1, 3, 6)])
@pytest.mark.parametrize("batched", [False, True])
def test_slices_split_the_last_dimension_of_any_shape(shape, batched):
    stream = torch.arange(float(math.prod(shape))).reshape(shape)
    linear = nn.Linear(2, 5)
    output = FlowBuilder().map(linear, batched=batched).slices(3).build()(stream)
    expected = torch.cat([linear(chunk) for chunk in stream.chunk(3, dim=-1)], dim=-1)
    assert output.shape == (*shape[:-1], 15)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("batched", [False, True])
def test_an_empty_batch_still_passes_through_the_body(batched):
    each = FlowBuilder().map(nn.Linear(4, 7), batched=batched).each().build()
    assert each(torch.zeros(0, 4)).shape == (0, 7)
    slices = FlowBuilder().map(nn.Linear(2, 7), batched=batched).slices(2).build()
    assert slices(torch.zeros(0, 4)).shape == (0, 14)


def test_the_body_receives_the_gradient_of_every_row():
    linear = nn.Linear(2, 1)
    rows = torch.arange(6.0).reshape(3, 2)
    FlowBuilder().map(linear).each().build()(rows).sum().backward()
    torch.testing.assert_close(linear.weight.grad, rows.sum(0, keepdim=True))


def test_a_graph_may_be_the_body():
    body = FlowBuilder(nn.Linear(2, 2)).tag("inner").label("part").build()
    model = FlowBuilder().map(body).slices(3).build()
    assert model(torch.zeros(2, 6)).shape == (2, 6)
    assert model.path_kind("part.inner") == "tag"


@pytest.mark.parametrize(
    ("stream", "end", "message"),
    [
        (torch.zeros(()), lambda m: m.each(), "at 'rows': map got a scalar. It maps the rows of a tensor."),
        ([1, 2], lambda m: m.each(), "at 'rows': map got a list. It maps the rows of a tensor."),
        (
            torch.zeros(2, 5),
            lambda m: m.slices(2),
            "at 'rows': a stream of shape (2, 5) cannot be split into 2 equal slices. "
            "It needs at least 2 dimensions, the last one divisible by 2.",
        ),
        (torch.zeros(4), lambda m: m.slices(2), "at 'rows': a stream of shape (4,) cannot be split into 2"),
    ],
)
def test_a_stream_that_cannot_be_mapped_is_rejected(stream, end, message):
    with pytest.raises(ShapeError) as caught:
        end(FlowBuilder().map(Double())).tag("rows").build()(stream)
    assert str(caught.value).startswith(message)


def test_errors_inside_name_the_body():
    with pytest.raises(ValueError, match="broken") as caught:
        FlowBuilder().map(Broken()).each().build()(torch.zeros(2, 2))
    assert caught.value.__notes__ == ["flodl: at 'map_1.body', Broken(), given (1, 2)"]


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        (lambda row: row.repeat(2, 1), {}, "returned shape (2, 2) for 1 row. Return a tensor whose first"),
        (lambda row: row[0], {}, "returned shape (2,) for 1 row."),
        (lambda row: row.sum(), {}, "returned shape () for 1 row."),
        (lambda row: (row, row), {}, "returned a tuple for 1 row."),
        (lambda rows: rows.sum(0), {"batched": True}, "returned shape (2,) for 3 rows."),
        (
            lambda row: row[:, : 1 + int(row[0, 0])],
            {},
            "shape (1, 1) for row 0 and (1, 2) for row 1. All rows",
        ),
    ],
)
def test_a_body_returns_one_row_for_each_row(body, options, words):
    model = FlowBuilder().map(body, **options).each().build()
    with pytest.raises(ShapeError) as caught:
        model(torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]]))
    assert str(caught.value).startswith("at 'map_1.body': the body of a map returned ")
    assert words in str(caught.value)


def test_a_body_that_does_not_fit_the_slices_is_shown_with_its_input():
    with pytest.raises(RuntimeError) as caught:
        FlowBuilder().map(torch.nn.Linear(5, 5, bias=False)).slices(4).build()(torch.zeros(2, 8))
    module = "Linear(in_features=5, out_features=5, bias=False)"
    assert caught.value.__notes__ == [f"flodl: at 'map_1.body', {module}, given (1, 2)"]


@pytest.mark.parametrize("mode", ["each", "slices"])
def test_an_export_with_a_dynamic_batch_names_the_map_that_calls_its_body_once_per_row(mode: str) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)

    def model(batched: bool) -> nn.Module:
        maps = FlowBuilder(nn.Identity()).map(nn.Linear(2, 2), batched=batched)
        inner = (maps.each() if mode == "each" else maps.slices(2)).label("encoder").build()
        return FlowBuilder(nn.Linear(4, 2 if mode == "each" else 4)).through(inner).build()

    x = torch.randn(3, 4)
    with pytest.raises(
        ShapeError, match=r"at 'encoder\.map_1': .*dynamic number of rows.*batched=True"
    ) as caught:
        torch.export.export(model(batched=False), (x,), dynamic_shapes=({0: batch},))
    assert caught.value.path == "encoder.map_1"
    exported = torch.export.export(model(batched=True), (x,), dynamic_shapes=({0: batch},)).module()
    assert exported(torch.randn(5, 4)).shape[0] == 5
    assert torch.export.export(model(batched=False), (x,)).module()(x).shape[0] == 3
