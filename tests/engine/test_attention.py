"""Attention reads queries, keys and values where they were computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention

from flodl.engine.attention import AttentionInPlace

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("on_a_cpu_too")
BATCH, LENGTH, HEADS, SIZE = 2, 6, 2, 8
WIDTH = HEADS * SIZE


def places(program: Callable[..., Tensor], *inputs: Tensor) -> list[tuple[object, ...]]:
    """Check that a changed program computes the same, and say where it reads: strides and offsets."""
    with torch.no_grad():
        traced = make_fx(program, tracing_mode="fake")(*inputs)
        AttentionInPlace()(traced.graph)
        traced.graph.lint()
        traced.recompile()
        assert torch.equal(traced(*inputs), program(*inputs))
    found = traced.graph.find_nodes(op="call_function", target=aten.as_strided.default)
    return sorted(node.args[2:] for node in found)


def heads(x: Tensor) -> Tensor:
    return x.view(BATCH, LENGTH, HEADS, SIZE).transpose(1, 2)


def test_torchs_own_attention_reads_one_tensor() -> None:
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    names, weights = zip(*attention.named_parameters())

    def program(x: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(names, weights))
        return functional_call(attention, named, (x, x, x), {"need_weights": False})[0]

    found = places(program, torch.randn(BATCH, LENGTH, WIDTH), *weights)
    steps = [3 * WIDTH, SIZE, BATCH * 3 * WIDTH, 1]
    assert found == [(steps, offset) for offset in (0, WIDTH, 2 * WIDTH)]


@pytest.mark.parametrize("take", ["chunk", "split", "unbind"])
def test_a_packed_projection_is_read_in_parts(take: str) -> None:
    def program(x: Tensor) -> Tensor:
        packed = x.relu()
        if take == "unbind":
            parts = packed.view(BATCH, LENGTH, 3, WIDTH).unbind(2)
        else:
            parts = packed.chunk(3, -1) if take == "chunk" else packed.split(WIDTH, -1)
        return scaled_dot_product_attention(*(heads(part.contiguous()) for part in parts))

    found = places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH))
    steps = [LENGTH * 3 * WIDTH, SIZE, 3 * WIDTH, 1]
    assert found == [(steps, offset) for offset in (0, WIDTH, 2 * WIDTH)]


def test_what_is_only_partly_read_is_not_written_for_nobody() -> None:
    def program(x: Tensor) -> Tensor:
        query, key, value, _ = (heads(part.contiguous()) for part in x.relu().chunk(4, -1))
        return scaled_dot_product_attention(query, key, value)

    assert places(program, torch.randn(BATCH, LENGTH, 4 * WIDTH)) == []


def test_inputs_that_no_kernel_could_read_there_are_copied_as_before() -> None:
    def program(x: Tensor) -> Tensor:
        # Every head begins at an odd place.
        parts = x.relu().chunk(3, -1)
        return scaled_dot_product_attention(*(part.reshape(2, 1, 6, 5).contiguous() for part in parts))

    assert places(program, torch.randn(2, 6, 15)) == []


def test_what_is_given_to_the_program_is_left_alone() -> None:
    def program(x: Tensor) -> Tensor:
        parts = x.chunk(3, -1)
        return scaled_dot_product_attention(*(heads(part.contiguous()) for part in parts))

    assert places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH)) == []


def test_inputs_that_others_read_too_stay_for_them() -> None:
    def program(x: Tensor) -> Tensor:
        query, key, value = (heads(part.contiguous()) for part in x.relu().chunk(3, -1))
        return scaled_dot_product_attention(query, key, value) + query.exp()

    assert len(places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH))) == 3
