"""Each part of a concatenation is computed in its own kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flodl.engine.compile.passes.concatenations import ComputePartsSeparately

from .rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
concat = torch.ops.flodl.concat.default
pytestmark = [
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]
BF16 = torch.bfloat16


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def num_concats(program, *inputs: Tensor) -> int:
    """Rewrite a program; return how many concatenations have changed, after checking the results."""
    traced = rewritten(program, ComputePartsSeparately(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert torch.equal(ours, theirs)
    return num_calls(traced.graph, concat)


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    return aten.add.Tensor(aten.mul.Tensor(x, angle), x)


@pytest.mark.parametrize("dim", [1, -1])
def test_parts_that_are_computed_are_written_to_their_places(dim: int) -> None:
    def program(one: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        rows = aten.cat.default([rotated(one, other), aten.view.default(other, [4, 8])], dim)
        return rows @ weight, aten.sum.dim_IntList(rows, [0])

    assert num_concats(program, random(4, 8), random(4, 8), random(16, 3)) == 1


def test_parts_that_are_copied_or_scaled_are_left_alone() -> None:
    def program(one: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (aten.cat.default([aten.mul.Tensor(one, 0.5), other], 1) @ weight,)

    assert num_concats(program, random(4, 8), random(4, 8), random(16, 3)) == 0


def test_a_concatenation_that_is_read_elementwise_is_left_alone() -> None:
    def program(one: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        rows = aten.cat.default([rotated(one, other), other], 1)
        return rows @ weight, aten.exp.default(rows)

    assert num_concats(program, random(4, 8), random(4, 8), random(16, 3)) == 0


def test_a_concatenation_in_float32_is_left_alone() -> None:
    def program(one: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (aten.cat.default([rotated(one, other), other], 1) @ weight,)

    parts = [random(4, 8, dtype=torch.float32)] * 2
    assert num_concats(program, *parts, random(16, 3, dtype=torch.float32)) == 0


def test_the_compiled_program_computes_the_same() -> None:
    torch._dynamo.reset()
    change, counts = counted(ComputePartsSeparately, concat)

    def program(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([one * other + one, other.exp() * one, other], -1) @ weight

    inputs = random(2, 4, 8), random(2, 4, 8), random(24, 3)
    compiled = torch.compile(program, options={"post_grad_custom_post_pass": change}, dynamic=False)
    torch.testing.assert_close(compiled(*inputs).float(), program(*inputs).float(), rtol=0, atol=0.3)
    assert counts == [1]
