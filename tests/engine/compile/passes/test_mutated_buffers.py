"""The backward computes with buffers as they were before the forward wrote to them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph

from flodl.engine.compile.passes.mutated_buffers import CloneMutatedBuffers

from .rewritten_programs import num_calls, rewritten

aten = torch.ops.aten


def changed(program, *inputs: Tensor) -> Graph:
    """Trace a program, rewrite its graph, and check that it is valid and changes its inputs alike."""
    traced = rewritten(program, CloneMutatedBuffers(), *inputs)
    ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
    assert torch.equal(traced(*ours), program(*theirs))
    assert all(map(torch.equal, ours, theirs))
    return traced.graph


def copies(graph: Graph) -> int:
    return num_calls(graph, aten.clone.default)


def test_values_computed_from_a_mutated_buffer_read_a_saved_copy() -> None:
    def program(buffer: Tensor, x: Tensor) -> Tensor:
        new = buffer * 0.5 + x
        made = new.exp() * buffer
        buffer.copy_(new)
        return made

    graph = changed(program, torch.randn(4), torch.randn(4))
    (copy,) = graph.find_nodes(op="call_function", target=aten.clone.default)
    assert "MUST_SAVE" in str(copy.meta["recompute"])
    (buffer, _) = graph.find_nodes(op="placeholder")
    assert {user.target for user in buffer.users} == {aten.clone.default, aten.copy_.default}


def test_a_buffer_that_only_counts_is_not_copied() -> None:
    """Like the statistics of a batch norm in training."""

    def program(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.copy_(buffer * 0.9 + x * 0.1)
        return x.exp()

    assert copies(changed(program, torch.randn(4), torch.randn(4))) == 0


def test_two_swapped_buffers_are_both_right() -> None:
    def program(one: Tensor, other: Tensor) -> Tensor:
        made, first, second = one - other, one * 1, other * 1
        one.copy_(second)
        other.copy_(first)
        return made

    assert copies(changed(program, torch.randn(4), torch.randn(4))) == 2


def test_a_program_without_mutations_is_left_alone() -> None:
    assert copies(changed(lambda x: x.exp() + 1, torch.randn(4))) == 0
