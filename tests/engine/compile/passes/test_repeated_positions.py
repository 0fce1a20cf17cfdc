"""Gradients of lookups, computed without atomic additions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.compile.passes.repeated_positions import SumRepeatedPositions

from .rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
pytestmark = [
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def positions(*shape: int, below: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(sum(shape)))


def compiled_gradient(table: nn.Embedding, index: Tensor, scale: Tensor) -> tuple[Tensor, list[int]]:
    """Return the gradient of a table, computed by the compiled program, and how many sums it has."""
    change, counts = counted(SumRepeatedPositions, aten.sum.dim_IntList)
    options = {"joint_custom_pre_pass": change}

    @torch.compile(options=options, dynamic=False)
    def loss(index: Tensor) -> Tensor:
        return (table(index) * scale).sum()

    loss(index).backward()
    grad = table.weight.grad
    assert grad is not None
    table.weight.grad = None
    (table(index) * scale).sum().backward()
    torch.testing.assert_close(grad, table.weight.grad, rtol=1e-4, atol=1e-4)
    return grad, counts


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_each_row_of_a_small_embedding_sums_its_values(padding_idx: int | None) -> None:
    table = nn.Embedding(4, 3, padding_idx=padding_idx)
    grad, counts = compiled_gradient(table, positions(2, 300, below=4), random(2, 300, 3))
    assert counts == [1]
    assert padding_idx is None or not grad[padding_idx].any()


def test_a_table_with_many_rows_keeps_its_gradient() -> None:
    _, counts = compiled_gradient(nn.Embedding(400, 3), positions(2, 300, below=400), random(2, 300, 3))
    assert counts == [0]


def scattered(values: Tensor, index: Tensor, width: int, *, dim: int = -1) -> Tensor:
    zeros = aten.full.default(
        [*values.shape[:-1], width], 0, dtype=values.dtype, device=values.device, pin_memory=False
    )
    return aten.scatter_add.default(zeros, dim, aten.expand.default(index, list(values.shape)), values)


def multiplied(values: Tensor, index: Tensor, width: int = 12) -> int:
    """Rewrite a `scatter_add`; return how many matmuls it has become, after checking its values."""

    def program(values: Tensor, index: Tensor) -> Tensor:
        return scattered(values, index, width)

    traced = rewritten(program, SumRepeatedPositions(), values, index)
    exact = scattered(values.double(), index, width)
    ours = traced(values, index)
    assert ours.dtype == values.dtype
    tolerance = 1e-2 if values.dtype is BF16 else 1e-5
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)
    num_matmuls = num_calls(traced.graph, aten.bmm.default)
    assert num_calls(traced.graph, aten.scatter_add.default) == 1 - num_matmuls
    return num_matmuls


@pytest.mark.parametrize("shape", [(32, 5, 7), (2, 16, 5, 7)])
def test_values_at_shared_positions_are_summed_by_a_matmul(shape: tuple[int, ...]) -> None:
    assert multiplied(random(*shape, dtype=BF16), positions(5, 7, below=12)) == 1


def test_transposed_values_are_copied_once_and_not_element_by_element() -> None:
    values = random(32, 7, 5, dtype=BF16).transpose(1, 2)
    index = positions(5, 7, below=12)
    assert multiplied(values, index) == 1

    def program(values: Tensor, index: Tensor) -> Tensor:
        return scattered(values, index, 12)

    def num_copies(values: Tensor) -> int:
        traced = rewritten(program, SumRepeatedPositions(), values, index)
        return num_calls(traced.graph, torch.ops.prims.inductor_force_stride_order.default)

    assert num_copies(values) == 1
    assert num_copies(values.contiguous()) == 0


def test_the_sum_is_rounded_once() -> None:
    values = torch.full((32, 1, 1024), 1.0, dtype=BF16)
    index = torch.zeros(1, 1024, dtype=torch.int64)

    def program(values: Tensor, index: Tensor) -> Tensor:
        return scattered(values, index, 2)

    traced = rewritten(program, SumRepeatedPositions(), values, index)
    # Added one by one in 16 bits, the sum would stop at 256.
    assert traced(values, index)[0, 0].tolist() == [1024.0, 0.0]


def test_other_sums_at_positions_are_left_alone() -> None:
    index = positions(5, 7, below=12)
    assert multiplied(random(32, 5, 7), index) == 0  # in float32
    assert multiplied(random(32, 5, 7, dtype=BF16), positions(32, 5, 7, below=12)) == 0  # not shared
    assert multiplied(random(2, 5, 7, dtype=BF16), index) == 0  # a small batch
    assert multiplied(random(16, 5, 7, dtype=BF16), index, width=10_000) == 1


def test_positions_are_compared_once_for_all_layers() -> None:
    def program(first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        index = aten.expand.default(index, [32, 5, 7])
        sums = []
        for values in (first, second):
            zeros = aten.full.default([32, 5, 12], 0, dtype=BF16, device=values.device, pin_memory=False)
            sums.append(aten.scatter_add.default(zeros, -1, index, values))
        return sums[0] + sums[1]

    values = [random(32, 5, 7, dtype=BF16), random(32, 5, 7, dtype=BF16) * 2]
    traced = rewritten(program, SumRepeatedPositions(), *values, positions(5, 7, below=12))
    assert num_calls(traced.graph, aten.eq.Tensor) == 1
    assert num_calls(traced.graph, aten.bmm.default) == 2
