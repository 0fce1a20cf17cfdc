"""Triton kernels of the cross entropy over a large vocabulary: each reads the logits once.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements that a program reads at once, and its warps.
FORWARD_BLOCK, FORWARD_WARPS = 4096, 4
BACKWARD_BLOCK, BACKWARD_WARPS = 4096, 4
# 16 bytes, which a thread reads at once.
_VECTOR = 8


def forward(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its log-sum-exp."""
    logits = _with_contiguous_rows(logits)
    rows, classes = logits.shape
    losses, log_sums = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
    with torch.cuda.device_of(logits):
        _cross_entropy_forward[(rows,)](
            logits,
            target.contiguous(),
            losses,
            log_sums,
            ignore_index,
            logits.stride(0),
            CLASSES=classes,
            READABLE=_readable(logits),
            ALIGNMENT=_alignment(logits),
            BLOCK=FORWARD_BLOCK,
            num_warps=FORWARD_WARPS,
        )
    return losses, log_sums


def backward(
    logits: Tensor, target: Tensor, log_sums: Tensor, scale: Tensor, ignore_index: int, columns: int
) -> Tensor:
    """Return the gradient of the logits, with zeros appended up to a number of columns."""
    logits = _with_contiguous_rows(logits)
    rows, classes = logits.shape
    grad = logits.new_empty((rows, columns))
    with torch.cuda.device_of(logits):
        _cross_entropy_backward[(rows * triton.cdiv(columns, BACKWARD_BLOCK),)](
            logits,
            target.contiguous(),
            log_sums,
            scale,
            grad,
            ignore_index,
            logits.stride(0),
            scale.stride(0),
            CLASSES=classes,
            READABLE=_readable(logits),
            COLUMNS=columns,
            ALIGNMENT=_alignment(logits),
            BLOCK=BACKWARD_BLOCK,
            num_warps=BACKWARD_WARPS,
        )
    return grad


def _with_contiguous_rows(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _alignment(logits: Tensor) -> int:
    """Return a number of elements of which every row's offset is a multiple."""
    return _VECTOR if logits.stride(0) % _VECTOR == 0 else 1


def _readable(logits: Tensor) -> int:
    """Return how many elements of a row to read: whole vectors if the memory behind each row is allocated.

    A mask that ends inside a vector would prevent vector loads in the whole row.
    """
    rows, classes = logits.shape
    whole = triton.cdiv(classes, _VECTOR) * _VECTOR
    end = logits.storage_offset() + (rows - 1) * logits.stride(0) + whole
    is_allocated = end * logits.element_size() <= logits.untyped_storage().nbytes()
    return whole if _alignment(logits) == _VECTOR and is_allocated else classes


@triton.jit
def _cross_entropy_forward(
    logits,
    target,
    losses,
    log_sums,
    ignore_index,
    row_stride,
    CLASSES: tl.constexpr,
    READABLE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the loss and the log-sum-exp of one row; an ignored row is not read, and its loss is 0."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(target + row)
    # Triton sees by itself only whether a stride is a multiple of 16.
    values = logits + tl.multiple_of(row * row_stride, ALIGNMENT)
    largest, total = -float("inf"), 0.0
    for start in range(0, tl.where(label == ignore_index, 0, CLASSES), BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(values + column, mask=column < READABLE, other=-float("inf")).to(tl.float32)
        if READABLE > CLASSES:
            value = tl.where(column < CLASSES, value, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(value, axis=0))
        # Without NaN as long as all values are -inf.
        shift = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(value - shift), axis=0)
        largest = new_largest
    is_class = (label >= 0) & (label < CLASSES)
    chosen = tl.load(values + label, mask=is_class, other=0.0).to(tl.float32)
    log_total = tl.log(total)
    loss = tl.where(is_class, log_total - (chosen - largest), float("nan"))
    tl.store(losses + row, tl.where(label == ignore_index, 0.0, loss))
    tl.store(log_sums + row, largest + log_total)


@triton.jit
def _cross_entropy_backward(
    logits,
    target,
    log_sums,
    scale,
    grad,
    ignore_index,
    row_stride,
    scale_stride,
    CLASSES: tl.constexpr,
    READABLE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute one block of one row of the gradient; an ignored row is not read."""
    blocks: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(target + row)
    is_read = label != ignore_index
    values = logits + tl.multiple_of(row * row_stride, ALIGNMENT)
    value = tl.load(values + column, mask=(column < READABLE) & is_read, other=0.0).to(tl.float32)
    factor = tl.load(scale + row * scale_stride)
    factor = tl.where((label >= 0) & (label < CLASSES), factor, float("nan"))
    probability = tl.exp(value - tl.load(log_sums + row))
    result = tl.where(column == label, probability - 1.0, probability) * factor
    result = tl.where((column < CLASSES) & is_read, result, 0.0)
    tl.store(grad + row * COLUMNS + column, result.to(grad.dtype.element_ty), mask=column < COLUMNS)
