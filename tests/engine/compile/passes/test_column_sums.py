"""Sums over rows that are results of a program are added in one kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.compile.passes.column_sums import SumColumnsTogether

from .rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default
concat = torch.ops.flodl.concat.default
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def matrix(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def num_merged(program: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> int:
    """Trace a program, rewrite its graph and check the results; return how many sums were merged."""
    traced = rewritten(program, SumColumnsTogether(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)
    return sum(len(node.args[0]) for node in traced.graph.find_nodes(op="call_function", target=concat))


def bias(grad: Tensor, dims: tuple[int, ...] = (0,)) -> Tensor:
    """Return the gradient of a bias under autocast, as torch's compiler writes it."""
    total = aten.sum.dim_IntList(grad, [*dims], True, dtype=torch.float32)
    return cast(cast(aten.view(total, [-1]), torch.bfloat16), torch.float32)


def test_the_sums_of_all_biases_are_added_together() -> None:
    def program(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(bias, grads))

    assert num_merged(program, matrix(1024, 8), matrix(1024, 16), matrix(1024, 4)) == 3


def test_rows_may_be_spread_over_several_dimensions_and_results_may_have_any_shape() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        per_channel = aten.view(aten.sum.dim_IntList(z, [1, 0]), [8, 1, 1])
        return bias(x, (0, 1)), aten.sum.dim_IntList(y, [0, -2]), per_channel

    y, z = matrix(64, 32, 4, dtype=torch.float32), matrix(16, 128, 8, dtype=torch.float32)
    assert num_merged(program, matrix(32, 64, 8), y, z) == 3


def test_sums_with_different_numbers_of_parts_are_merged_apart() -> None:
    def program(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(bias, grads))

    short = [matrix(1024, 4 * width) for width in (1, 2, 3)]
    long = [matrix(16384, 4 * width) for width in (1, 2, 3)]
    traced = rewritten(program, SumColumnsTogether(), *short, *long)
    assert num_calls(traced.graph, concat) == 2
    assert num_merged(program, *short, *long) == 6
    # One alone is left as it is.
    assert num_merged(program, *short, long[0]) == 3


def test_the_sum_is_not_rounded_in_between() -> None:
    def program(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(bias, grads))

    inputs = [matrix(2048, 8 * width) for width in (1, 2, 3)]
    traced = rewritten(program, SumColumnsTogether(), *inputs)
    for ours, grad in zip(traced(*inputs), inputs, strict=True):
        torch.testing.assert_close(ours, grad.double().sum(0).float(), rtol=1e-5, atol=1e-4)


def test_other_sums_are_left_alone() -> None:
    def few_rows(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(bias(grad) for grad in grads)

    def read_again(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(bias(grad) + 1 for grad in grads)

    def of_columns(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(aten.sum.dim_IntList(grad.float(), [1]) for grad in grads)

    def of_all(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(aten.sum.dim_IntList(grad.float(), [0, 1]) for grad in grads)

    def in_16_bits(*grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(aten.sum.dim_IntList(grad, [0]) for grad in grads)

    def of_integers(*grads: Tensor) -> tuple[Tensor, ...]:
        totals = [aten.sum.dim_IntList(cast(grad, torch.int64), [0]) for grad in grads]
        return tuple(cast(total, torch.float32) for total in totals)

    three = [matrix(1024, 4 * width) for width in (1, 2, 3)]
    assert num_merged(few_rows, *(grad[:1000] for grad in three)) == 0
    # Three numbers are not aligned, and no number of parts divides a prime number of rows.
    assert num_merged(few_rows, *(matrix(1024, width) for width in (3, 5, 6))) == 0
    assert num_merged(few_rows, *(matrix(8191, 4 * width) for width in (1, 2, 3))) == 0
    for program in (read_again, of_columns, of_all, in_16_bits, of_integers):
        assert num_merged(program, *three) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_a_compiled_step_with_autocast_has_the_gradients_of_eager() -> None:
    """Through the whole compiler, on a CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
    x = torch.randn(16, 128, 8)
    counting, counts = counted(SumColumnsTogether, concat)
    options = {"post_grad_custom_post_pass": counting}
    results = []
    for forward in (model, torch.compile(model, options=options, dynamic=False)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            result = forward(x)
        (result.float() * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    assert sum(counts) == 1
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-2 * theirs.abs().max().item())
