"""Count FLOPs, also of the operations that torch's own counter leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Shape = Sequence[int]


def flop_counter() -> FlopCounterMode:
    """Return torch's counter; it also counts recurrent layers, products with vectors, attention on CPUs.

    >>> with flop_counter() as counter:
    ...     _ = torch.nn.LSTM(4, 8)(torch.zeros(3, 2, 4))
    >>> counter.get_total_flops()  # 2 FLOPs for each weight, row and step
    4608
    """
    return FlopCounterMode(display=False, custom_mapping=_counts())


def _counts() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    counts: dict[str, Callable[..., int]] = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "mkldnn_rnn_layer": _mkldnn_rnn,
        "_cudnn_rnn": _fused_rnn,
        "miopen_rnn": _fused_rnn,
        "mv": _mv,
        "addmv": _addmv,
        "dot": _dot,
        "vdot": _dot,
        "addbmm": _addbmm,
        "_trilinear": _trilinear,
    }
    return {getattr(aten, name): count for name, count in counts.items() if hasattr(aten, name)}


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _mkldnn_rnn(input: Shape, w_ih: Shape, w_hh: Shape, *_: Any, **__: Any) -> int:
    """One direction of one layer, on (steps, batch, features)."""
    return 2 * math.prod(input[:2]) * (math.prod(w_ih) + math.prod(w_hh))


def _fused_rnn(input: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    """All layers, on (steps, batch, features), or on packed rows. Biases are vectors."""
    matrices = sum(math.prod(shape) for shape in weights if len(shape) == 2)
    return 2 * math.prod(input[:-1]) * matrices


def _mv(matrix: Shape, _: Shape, **__: Any) -> int:
    return 2 * math.prod(matrix)


def _addmv(_: Shape, matrix: Shape, vector: Shape, **__: Any) -> int:
    return 2 * math.prod(matrix)


def _dot(one: Shape, _: Shape, **__: Any) -> int:
    return 2 * math.prod(one)


def _addbmm(_: Shape, one: Shape, other: Shape, **__: Any) -> int:
    return 2 * math.prod(one) * other[2]


def _trilinear(
    one: Shape,
    two: Shape,
    three: Shape,
    expand_one: Sequence[int],
    expand_two: Sequence[int],
    expand_three: Sequence[int],
    summed: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """The product of the three, after each got dimensions of size 1."""
    shapes = [
        _with_ones(one, expand_one),
        _with_ones(two, expand_two),
        _with_ones(three, expand_three),
    ]
    sizes: list[int] = [max(one) for one in zip(*shapes)]
    return 2 * math.prod(sizes)


def _with_ones(shape: Shape, dims: Sequence[int]) -> list[int]:
    sizes = list(shape)
    for dim in sorted(dims):
        sizes.insert(dim, 1)
    return sizes
