"""Gradients of selected slices are stacked, instead of added to zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flodl.engine.compile.passes.stacks import StackSelectedSlices

from .rewritten_programs import num_calls, rewritten

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def slices(*values: Tensor, at: tuple[int, ...], dim: int = 0, length: int = 3) -> list[Tensor]:
    """Return values in a tensor of zeros, each at its index."""
    shape = [*values[0].shape]
    shape.insert(dim if dim >= 0 else dim + len(shape) + 1, length)
    zeros = aten.full.default(shape, 0, dtype=values[0].dtype, device=values[0].device, pin_memory=False)
    return [aten.select_scatter.default(zeros, value, dim, index) for value, index in zip(values, at)]


def num_stacks(program, *inputs: Tensor) -> int:
    traced = rewritten(program, StackSelectedSlices(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert torch.equal(ours, theirs)
    return num_calls(traced.graph, aten.cat.default)


VALUES = [torch.randn((4, 5), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, -2)])
def test_slices_that_cover_a_tensor_are_stacked(dim: int, order: tuple[int, ...]) -> None:
    def program(*values: Tensor) -> tuple[Tensor, ...]:
        first, second, third = slices(*values, at=order, dim=dim)
        return (aten.exp(aten.add.Tensor(aten.add.Tensor(first, second), third)),)

    assert num_stacks(program, *VALUES) == 1


def test_slices_with_gaps_or_repetitions_are_added() -> None:
    def with_gap(*values: Tensor) -> tuple[Tensor, ...]:
        first, second = slices(*values[:2], at=(0, 2))
        return (aten.add.Tensor(first, second),)

    def repeated(*values: Tensor) -> tuple[Tensor, ...]:
        first, second, third = slices(*values, at=(1, 1, 0), length=2)
        return (aten.add.Tensor(aten.add.Tensor(first, second), third),)

    assert num_stacks(with_gap, *VALUES) == num_stacks(repeated, *VALUES) == 0


def test_other_terms_and_readers_are_kept() -> None:
    def program(*values: Tensor) -> tuple[Tensor, ...]:
        first, second = slices(*values[:2], at=(0, 1), length=2)
        return (aten.add.Tensor(aten.add.Tensor(first, second), values[2]),)

    assert num_stacks(program, *VALUES) == 1

    def read_twice(*values: Tensor) -> tuple[Tensor, ...]:
        first, second = slices(*values[:2], at=(0, 1), length=2)
        return aten.add.Tensor(first, second), aten.exp(first)

    assert num_stacks(read_twice, *VALUES) == 0


def test_slices_of_tensors_other_than_zeros_are_added() -> None:
    def program(*values: Tensor) -> tuple[Tensor, ...]:
        ones = aten.full.default([2, 4, 5], 1, dtype=torch.float32, device=values[0].device, pin_memory=False)
        parts = [aten.select_scatter.default(ones, values[index], 0, index) for index in range(2)]
        return (aten.add.Tensor(*parts),)

    assert num_stacks(program, *VALUES) == 0
