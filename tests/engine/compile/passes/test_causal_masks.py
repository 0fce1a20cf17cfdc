"""Attention computes causal masks itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flodl.engine.compile.passes.causal_masks import RecognizeCausalMasks

from .rewritten_programs import rewritten

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
LENGTH = 6


def visible() -> Tensor:
    """Return which positions a causal mask shows, computed as transformers does."""
    at = torch.arange(LENGTH)
    return at[None, None, None, :] <= at[None, None, :, None]


def is_causal(mask, *inputs: Tensor, queries: int = LENGTH) -> bool:
    """Trace attention with a mask and rewrite its graph; return whether the mask became unnecessary."""
    source = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 8, generator=source) for n in (queries, LENGTH, LENGTH))

    def program(query: Tensor, key: Tensor, value: Tensor, *inputs: Tensor) -> Tensor:
        return attention(query, key, value, attn_mask=mask(*inputs))[0]

    traced = rewritten(program, RecognizeCausalMasks(), query, key, value, *inputs)
    torch.testing.assert_close(traced(query, key, value, *inputs), program(query, key, value, *inputs))
    (node,) = traced.graph.find_nodes(op="call_function", target=attention)
    assert bool(node.kwargs.get("is_causal")) == (node.kwargs.get("attn_mask") is None)
    return bool(node.kwargs.get("is_causal"))


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min, -65536.0])
def test_a_causal_mask_is_recognized(hidden: float) -> None:
    assert is_causal(lambda: torch.where(visible().expand(2, -1, -1, -1), 0.0, hidden))


def test_other_masks_are_left_alone() -> None:
    assert not is_causal(lambda: torch.where(visible(), 0.0, -3.0))
    assert not is_causal(lambda: torch.where(visible() & (torch.arange(LENGTH) > 0), 0.0, -1e30))
    assert not is_causal(lambda: torch.where(visible(), 0.5, -torch.inf))


def test_a_mask_that_depends_on_the_batch_is_left_alone() -> None:
    shown = torch.ones(2, LENGTH, dtype=torch.bool)
    assert not is_causal(lambda shown: torch.where(visible() & shown[:, None, None], 0.0, -torch.inf), shown)


def test_a_mask_for_fewer_queries_than_keys_is_left_alone() -> None:
    assert not is_causal(lambda: torch.where(visible()[..., :4, :], 0.0, -torch.inf), queries=4)
