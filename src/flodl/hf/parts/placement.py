"""Two alternatives to a skewed view for turning scores of relative positions into scores of keys.

Which one is fastest depends on length, device and compiler; `benchmarks/hf.py` compares them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

Placement = Literal["auto", "skew", "gather", "flex", "fused"]


def pair_rows(distance: Tensor, length: int) -> Tensor:
    """Return the row of the embedding for each query and key, [length, length].

    `distance` has an entry for each key − query, from 1 − length on.

    >>> pair_rows(torch.tensor([7, 8, 9]), 2)
    tensor([[8, 9],
            [7, 8]])
    """
    place = torch.arange(length, device=distance.device)
    return distance[place - place[:, None] + length - 1]


def gather_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Pick the score of each key: [batch, heads, queries, rows of the embedding] to […, queries, keys]."""
    return scores.gather(-1, rows.expand(*scores.shape[:-1], -1))


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    c2p: Tensor | None,
    p2c: Tensor | None,
    rows: Tensor,
    mask: Tensor | None,
    real: Tensor | None,
    scale: float,
) -> Tensor:
    """Attend with scores of positions that are looked up for each tile of the fused kernel.

    `c2p` [batch, heads, queries, rows] and `p2c` [batch, heads, keys, rows] are scaled; `rows` are indices
    into their last dimension, [queries, keys]. `mask` and `real` are those of `DisentangledAttention`.
    """

    def score(value: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = rows[q, k]
        position = torch.zeros_like(value)
        if c2p is not None:
            position = position + c2p[b, h, q, row]
        if p2c is not None:
            position = position + p2c[b, h, k, row]
        if real is not None:
            position = position * real[b, 0, q, 0]
        value = value + position
        return value if mask is None else value + mask[b, 0, q, k]

    found: Tensor = _kernel(query.is_cuda)(query, key, value, score_mod=score, scale=scale)
    return found


@cache
def _kernel(is_cuda: bool) -> Any:
    from torch.nn.attention import flex_attention as library

    # Outside of a compiled model, the uncompiled function would build all scores in memory.
    return torch.compile(library.flex_attention) if is_cuda else library.flex_attention
