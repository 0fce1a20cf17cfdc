"""Attention within the sentences of a packed batch, as an operator of torch with a gradient."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .constant import constant

# Longer sentences are faster in torch's kernel.
LONGEST = 256
_WIDEST = 128
# The tokens of a block, and the warps that compute it.
_BLOCK, _WARPS = 64, 4


def fits(longest: int, width: int) -> bool:
    """Return whether these kernels run sentences of at most `longest` tokens with heads of this width."""
    return longest <= LONGEST and width <= _WIDEST and has_triton()


@constant
def has_triton() -> bool:
    """Return whether Triton is installed; it comes with torch for CUDA."""
    return find_spec("triton") is not None


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *, longest: int, reach: int = -1
) -> Tensor:
    """Attend within each sentence; queries, keys and values are [tokens, heads, width].

    Sentence i has the tokens `bounds[i]` to `bounds[i + 1]`, and every token belongs to a sentence. With
    `reach`, tokens attend to tokens at most that far away.
    """
    _define()
    scale = query.shape[-1] ** -0.5
    out, _ = torch.ops.flodl.packed_attention(query, key, value, bounds, longest, scale, reach)
    return out  # type: ignore[no-any-return]


@constant
def _define() -> None:
    """Register the operators once; this imports parts of torch that models without packing do not need."""
    if hasattr(torch.ops.flodl, "packed_attention_backward"):
        return
    library = torch.library
    attend = library.custom_op(
        "flodl::packed_attention",
        _attend,
        mutates_args=(),
        schema="(Tensor query, Tensor key, Tensor value, Tensor bounds, int longest, float scale, int reach)"
        " -> (Tensor, Tensor)",
    )
    attend.register_fake(_shapes)
    attend.register_autograd(_backward, setup_context=_save)
    gradients = library.custom_op(
        "flodl::packed_attention_backward",
        _differentiate,
        mutates_args=(),
        schema="(Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor grad, Tensor bounds, "
        "int longest, float scale, int reach) -> (Tensor, Tensor, Tensor)",
    )
    gradients.register_fake(lambda query, *rest: tuple(_like(query) for _ in range(3)))


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _shapes(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    tokens, heads, _width = query.shape
    return _like(query), query.new_empty((heads, tokens), dtype=torch.float32)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, scale: float, reach: int
) -> tuple[Tensor, Tensor]:
    from .packed_triton import attend

    query, key, value = map(_dense_heads, (query, key, value))
    out, lse = _shapes(query)
    strides = [part.stride(0) for part in (query, key, value, out)]
    attend[_grid(query, bounds, longest)](
        query, key, value, out, lse, bounds, *strides, len(query), scale, reach, **_blocks(query, reach)
    )
    return out, lse


def _differentiate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    bounds: Tensor,
    longest: int,
    scale: float,
    reach: int,
) -> tuple[Tensor, Tensor, Tensor]:
    from .packed_triton import differentiate

    query, key, value, out, grad = map(_dense_heads, (query, key, value, out, grad))
    grads = _like(query), _like(query), _like(query)
    strides = [part.stride(0) for part in (query, key, value, out, grad, grads[0])]
    differentiate[_grid(query, bounds, longest)](
        query,
        key,
        value,
        out,
        grad,
        lse,
        *grads,
        bounds,
        *strides,
        len(query),
        scale,
        reach,
        **_blocks(query, reach),
    )
    return grads


def _dense_heads(part: Tensor) -> Tensor:
    """Return a tensor whose heads lie next to each other, as those of a projection do; rows may be apart."""
    width = part.shape[-1]
    return part if part.stride()[1:] == (width, 1) else part.contiguous()


def _grid(query: Tensor, bounds: Tensor, longest: int) -> tuple[int, int, int]:
    return len(bounds) - 1, query.shape[1], -(-longest // _BLOCK)


def _blocks(query: Tensor, reach: int) -> dict[str, Any]:
    width = query.shape[-1]
    return {
        "D": width,
        "WIDTH": max(16, 1 << (width - 1).bit_length()),
        "BLOCK": _BLOCK,
        "WINDOW": reach >= 0,
        "num_warps": _WARPS,
        "num_stages": 2,
    }


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bounds, ctx.longest, ctx.scale, ctx.reach = inputs
    ctx.save_for_backward(query, key, value, *output, bounds)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, out, lse, bounds = ctx.saved_tensors
    grads = torch.ops.flodl.packed_attention_backward(
        query, key, value, out, lse, grad, bounds, ctx.longest, ctx.scale, ctx.reach
    )
    return (*grads, None, None, None, None)
