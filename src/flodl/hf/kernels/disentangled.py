"""Disentangled attention as one operator, and where it runs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .constant import constant
from .packed import has_triton

LARGEST_WIDTH = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Blocks(NamedTuple):
    """What a program of the kernel computes at a time, and how it is launched."""

    queries: int
    keys: int
    warps: int
    stages: int


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    c2p: Tensor | None,
    p2c: Tensor | None,
    rows: Tensor | None,
    real: Tensor | None,
    scale: float,
    position_scale: float,
) -> Tensor:
    """Attend with scores of positions that are looked up inside the kernel; has no gradients.

    `query`, `key` and `value` are [batch, heads, length, width], and the result is [batch, length, heads ·
    width]. `c2p` [batch, heads, queries, columns] and `p2c` [batch, heads, keys, columns] are multiplied by
    `position_scale`. The column of a pair is key − query + length − 1, or the value of `rows` (int16) there.
    `real` [batch, 1, length, 1] is 0 for padding, as in `DisentangledAttention`.
    """
    arguments = (query, key, value, c2p, p2c, rows, real, scale, position_scale)
    if type(query) is Tensor and not torch.compiler.is_compiling():
        # The first call of an operator imports the compiler, which takes longer than loading a model.
        return launch(*arguments)
    _define()
    found: Tensor = torch.ops.flodl.disentangled_attention(*arguments)
    return found


def launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    c2p: Tensor | None,
    p2c: Tensor | None,
    rows: Tensor | None,
    real: Tensor | None,
    scale: float,
    position_scale: float,
    blocks: Blocks | None = None,
) -> Tensor:
    """Run the kernel, with given block sizes or those for this length."""
    from .disentangled_triton import attend

    batch, heads, length, width = query.shape
    output = query.new_empty(batch, length, heads * width)
    if not output.numel():
        return output
    blocks = blocks or blocks_for(length, query.dtype)
    query, key, value = (_rows_of_numbers(part) for part in (query, key, value))
    c2p, p2c = (None if part is None else _rows_of_numbers(part) for part in (c2p, p2c))
    unused = query
    parts = [query, key, value, unused if c2p is None else c2p, unused if p2c is None else p2c]
    even = length % blocks.queries == 0 and length % blocks.keys == 0
    # A model compiles a kernel for each number of columns that is used with even blocks: few.
    strides = {part.stride(2) for part in (c2p, p2c) if part is not None}
    columns = max(strides, default=0)
    padded_width = max(16, 1 << (width - 1).bit_length())
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        attend[(-(-length // blocks.queries) * batch * heads,)](
            *parts,
            unused if rows is None else rows,
            unused if real is None else real.contiguous(),
            output,
            *(stride for part in parts for stride in part.stride()[:3]),
            heads,
            length,
            scale * math.log2(math.e),
            position_scale * math.log2(math.e),
            WIDTH=width,
            HAS_C2P=c2p is not None,
            HAS_P2C=p2c is not None,
            HAS_ROWS=rows is not None,
            HAS_REAL=real is not None,
            EVEN=even,
            FULL=even and width == padded_width,
            COLUMNS=columns if even and strides == {columns} else 0,
            PADDED_WIDTH=padded_width,
            QUERIES=blocks.queries,
            KEYS=blocks.keys,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
    return output


@constant
def _define() -> None:
    """Register the operator once."""
    if hasattr(torch.ops.flodl, "disentangled_attention"):
        return
    operator = torch.library.custom_op(
        "flodl::disentangled_attention",
        launch,
        mutates_args=(),
        schema="(Tensor query, Tensor key, Tensor value, Tensor? c2p, Tensor? p2c, Tensor? rows, "
        "Tensor? real, float scale, float position_scale) -> Tensor",
    )
    operator.register_fake(_shape)


def _shape(query: Tensor, *_: object) -> Tensor:
    batch, heads, length, width = query.shape
    return query.new_empty(batch, length, heads * width)


def blocks_for(length: int, dtype: torch.dtype) -> Blocks:
    """Return block sizes that fit the sequence.

    >>> blocks_for(512, torch.bfloat16)
    Blocks(queries=64, keys=64, warps=4, stages=2)
    """
    if length <= 32 or dtype == torch.float32:
        return Blocks(32, 32, 4, 1)
    # Compiled for an H200, this takes 141 registers per thread: three programs fit on a multiprocessor.
    return Blocks(64, 64, 4, 2)


def unsupported(query: Tensor) -> str | None:
    """Return why the kernel cannot run, or None if it can.

    >>> unsupported(torch.zeros(1, 2, 8, 64))
    'the tensors are on cpu, not on cuda'
    """
    if not query.is_cuda:
        return f"the tensors are on {query.device.type}, not on cuda"
    if query.dtype not in DTYPES:
        return f"attention runs in {query.dtype}, not in bfloat16, float16 or float32"
    if query.shape[-1] > LARGEST_WIDTH:
        return f"heads have {query.shape[-1]} columns, more than {LARGEST_WIDTH}"
    if not (has_triton() and _is_new_enough(query.device)):
        return "it needs Triton and a device with compute capability 8.0 or higher"
    return None


@constant
def _is_new_enough(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def _rows_of_numbers(value: Tensor) -> Tensor:
    """Return the tensor with the numbers of its last dimension next to each other."""
    return value if value.stride(-1) == 1 else value.contiguous()
