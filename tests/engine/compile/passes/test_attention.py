"""Attention reads queries, keys and values where they were computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention

from flodl.engine.compile.passes.attention import AttentionWithoutCopies

from .rewritten_programs import rewritten

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("passes_on_cpu")
BATCH, LENGTH, HEADS, SIZE = 2, 6, 2, 8
WIDTH = HEADS * SIZE


def places(program: Callable[..., Tensor], *inputs: Tensor) -> list[tuple[object, ...]]:
    """Check that a rewritten program computes the same, and return the strides and offsets that it reads."""
    with torch.no_grad():
        traced = rewritten(program, AttentionWithoutCopies(), *inputs)
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


def test_keys_and_values_in_an_empty_cache_are_read_from_the_matmul() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        query, key, value = (heads(part) for part in (x @ weight).view(BATCH, LENGTH, -1).chunk(3, -1))
        return scaled_dot_product_attention(query, key.clone(), value.clone())

    found = places(program, torch.randn(BATCH * LENGTH, WIDTH), torch.randn(WIDTH, 3 * WIDTH))
    steps = [LENGTH * 3 * WIDTH, SIZE, 3 * WIDTH, 1]
    assert found == [(steps, offset) for offset in (0, WIDTH, 2 * WIDTH)]


def test_what_a_matmul_wrote_is_read_as_it_is() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        parts = (x @ weight).view(BATCH, LENGTH, -1).chunk(3, -1)
        return scaled_dot_product_attention(*map(heads, parts))

    assert places(program, torch.randn(BATCH * LENGTH, WIDTH), torch.randn(WIDTH, 3 * WIDTH)) == []


def test_a_tensor_that_is_only_partly_read_is_left_alone() -> None:
    def program(x: Tensor) -> Tensor:
        query, key, value, _ = (heads(part.contiguous()) for part in x.relu().chunk(4, -1))
        return scaled_dot_product_attention(query, key, value)

    assert places(program, torch.randn(BATCH, LENGTH, 4 * WIDTH)) == []


def test_inputs_that_no_kernel_can_read_strided_are_still_copied() -> None:
    def program(x: Tensor) -> Tensor:
        # Every head starts at an odd offset.
        parts = x.relu().chunk(3, -1)
        return scaled_dot_product_attention(*(part.reshape(2, 1, 6, 5).contiguous() for part in parts))

    assert places(program, torch.randn(2, 6, 15)) == []


def test_inputs_of_the_program_are_left_alone() -> None:
    def program(x: Tensor) -> Tensor:
        parts = x.chunk(3, -1)
        return scaled_dot_product_attention(*(heads(part.contiguous()) for part in parts))

    assert places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH)) == []


def test_inputs_with_other_readers_are_still_copied() -> None:
    def program(x: Tensor) -> Tensor:
        query, key, value = (heads(part.contiguous()) for part in x.relu().chunk(3, -1))
        return scaled_dot_product_attention(query, key, value) + query.exp()

    assert places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH)) == []


def test_a_mask_passed_by_keyword_is_kept() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        parts = (heads(part.contiguous()) for part in x.relu().chunk(3, -1))
        return scaled_dot_product_attention(*parts, attn_mask=mask)

    mask = torch.randn(LENGTH, LENGTH)
    assert len(places(program, torch.randn(BATCH, LENGTH, 3 * WIDTH), mask)) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_and_its_backward_read_the_same_tensor(dtype: torch.dtype) -> None:
    """The operators of CUDA, which can be traced without a device."""

    def program(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        parts = x.relu().view(LENGTH, BATCH, 3, HEADS, SIZE).permute(2, 1, 3, 0, 4).contiguous().unbind(0)
        made = aten._scaled_dot_product_efficient_attention.default(*parts, None, True)
        rows = grad.tanh().view(LENGTH, BATCH, HEADS, SIZE).permute(1, 2, 0, 3).contiguous()
        back = aten._scaled_dot_product_efficient_attention_backward.default
        return back(rows, *parts, None, *made, 0.0, [True, True, True, False])[:3]

    with torch.device("meta"):
        shapes = (LENGTH, BATCH, 3 * WIDTH), (LENGTH, BATCH, WIDTH)
        traced = make_fx(program, tracing_mode="fake")(*(torch.empty(shape, dtype=dtype) for shape in shapes))
    AttentionWithoutCopies()(traced.graph)
    traced.graph.lint()
    assert len(traced.graph.find_nodes(op="call_function", target=aten.as_strided.default)) == 4
    assert not traced.graph.find_nodes(op="call_function", target=aten.clone.default)


def test_nothing_changes_if_the_results_would_get_other_strides() -> None:
    """Queries with the batch first; the results follow their layout."""

    def program(x: Tensor) -> Tensor:
        parts = x.relu().view(LENGTH, BATCH, 3, HEADS, SIZE).permute(2, 1, 3, 0, 4).contiguous().unbind(0)
        made = aten._scaled_dot_product_flash_attention.default(*parts)
        return made[0]

    with torch.device("meta"):
        traced = make_fx(program, tracing_mode="fake")(
            torch.empty(LENGTH, BATCH, 3 * WIDTH, dtype=torch.bfloat16)
        )
    AttentionWithoutCopies()(traced.graph)
    assert not traced.graph.find_nodes(op="call_function", target=aten.as_strided.default)
