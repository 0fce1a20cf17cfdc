"""Weights of a mixed-precision step are cast in one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph

from flodl.engine.compile.passes.weight_casts import CastWeightsTogether

from .rewritten_programs import counted, num_calls, rewritten

cast = torch.ops.prims.convert_element_type.default
together = torch.ops.flodl.cast_together.default
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def changed(program, *inputs: Tensor) -> Graph:
    """Trace a program, rewrite its graph, and check that it is valid and computes the same bits."""
    traced = rewritten(program, CastWeightsTogether(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
    return traced.graph


def test_weights_that_only_matmuls_read_are_cast_in_one_call() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        one, other = (cast(weight, torch.bfloat16) for weight in (one, other))
        return x @ one.permute(1, 0), x @ other

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    graph = changed(program, x, torch.randn(6, 8), torch.randn(7, 8).t())
    assert (num_calls(graph, together), num_calls(graph, cast)) == (1, 0)


def test_a_weight_that_is_cast_twice_is_cast_once() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return tuple(x @ cast(weight, torch.bfloat16) for weight in (one, other, one))

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    graph = changed(program, x, torch.randn(8, 8), torch.randn(8, 8))
    (call,) = graph.find_nodes(op="call_function", target=together)
    assert len(call.args[0]) == 2


def test_a_cast_that_can_be_fused_is_left_alone() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        scale = cast(other, torch.bfloat16)
        return x @ cast(one, torch.bfloat16), x * scale, x @ scale

    x = torch.randn(8, 8, dtype=torch.bfloat16)
    assert num_calls(changed(program, x, torch.randn(8, 8), torch.randn(8, 8)), together) == 0


def test_a_computed_value_is_left_alone() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return tuple(x @ cast(weight.exp(), torch.bfloat16) for weight in (one, other))

    x = torch.randn(8, 8, dtype=torch.bfloat16)
    assert num_calls(changed(program, x, torch.randn(8, 8), torch.randn(8, 8)), together) == 0


def test_a_weight_that_the_program_overwrites_is_left_alone() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        result = tuple(x @ cast(weight, torch.bfloat16) for weight in (one, other))
        one.copy_(one)
        return result

    x = torch.randn(8, 8, dtype=torch.bfloat16)
    assert num_calls(changed(program, x, torch.randn(8, 8), torch.randn(8, 8)), together) == 0


def test_a_cast_that_the_backward_reads_too_is_included() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        one, other = (cast(weight, torch.bfloat16) for weight in (one, other))
        return x @ one, x @ other, one

    x = torch.randn(8, 8, dtype=torch.bfloat16)
    graph = changed(program, x, torch.randn(8, 8), torch.randn(8, 8))
    assert (num_calls(graph, together), num_calls(graph, cast)) == (1, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_a_compiled_step_with_autocast_computes_the_same_with_the_pass() -> None:
    """Through the whole compiler, on a CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 1))
    x = torch.randn(4, 8)
    found: list[list[Tensor]] = []
    counting, counts = counted(CastWeightsTogether, together)
    options = {"post_grad_custom_post_pass": counting}
    compiled = torch.compile(lambda x: model(x).float().square().mean(), dynamic=False, options=options)
    for run in (compiled, torch.compile(lambda x: model(x).float().square().mean(), dynamic=False)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(map(torch.equal, *found))
    assert counts[0] == 1  # in the forward


def test_weights_that_are_read_as_one_matrix_are_cast_into_one() -> None:
    def program(x: Tensor, one: Tensor, other: Tensor, third: Tensor) -> tuple[Tensor, ...]:
        rows = cast(torch.ops.aten.cat.default([one, other]), torch.bfloat16)
        return x @ rows.permute(1, 0), x @ cast(third, torch.bfloat16)

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    graph = changed(program, x, torch.randn(6, 8), torch.randn(2, 8), torch.randn(8, 3))
    assert (num_calls(graph, together), num_calls(graph, cast)) == (1, 0)
    assert num_calls(graph, torch.ops.aten.cat.default) == 0
