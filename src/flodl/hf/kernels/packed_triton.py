"""Triton kernels for attention within many short sentences; imported only where there is a CUDA device.

Tokens lie in one row: queries, keys and values are [tokens, heads, width]. One program computes a block of
one sentence and head. Blocks are small, because most sentences are: torch's kernel has blocks of 128 tokens.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(base, rows, columns, stride, length, D: tl.constexpr):
    inside = (rows[:, None] < length) & (columns[None, :] < D)
    return tl.load(base + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, values, rows, columns, stride, length, D: tl.constexpr):
    inside = (rows[:, None] < length) & (columns[None, :] < D)
    places = base + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(places, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _scores(q, k, rows, others, length, scale, reach, WINDOW: tl.constexpr):
    """Return the scores of queries `rows` and keys `others`, times log2(e); −inf where a key is hidden."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
    seen = (others[None, :] < length) & (rows[:, None] < length)
    if WINDOW:
        seen = seen & (tl.abs(rows[:, None] - others[None, :]) <= reach)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def attend(
    query, key, value, out, lse, bounds, q_stride, k_stride, v_stride, out_stride, tokens, scale, reach,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Attend from one block of queries, and store the base-2 logarithm of the sum of its weights."""
    sentence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(bounds + sentence).to(tl.int64)
    length = (tl.load(bounds + sentence + 1) - start).to(tl.int32)
    if block * BLOCK >= length:
        return
    rows, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    q = _load(query + start * q_stride + head * D, rows, columns, q_stride, length, D)
    keys, values = key + start * k_stride + head * D, value + start * v_stride + head * D
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    result = tl.zeros([BLOCK, WIDTH], tl.float32)
    for first in range(0, length, BLOCK):
        others = first + tl.arange(0, BLOCK)
        k = _load(keys, others, columns, k_stride, length, D)
        v = _load(values, others, columns, v_stride, length, D)
        scores = _scores(q, k, rows, others, length, scale, reach, WINDOW)
        new = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet.
        safe = tl.where(new == float("-inf"), 0.0, new)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new
    total = tl.where(total == 0.0, 1.0, total)
    _store(out + start * out_stride + head * D, result / total[:, None], rows, columns, out_stride, length, D)
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(lse + head.to(tl.int64) * tokens + start + rows, safe + tl.log2(total), mask=rows < length)


@triton.jit
def differentiate(
    query, key, value, out, grad, lse, d_query, d_key, d_value, bounds,
    q_stride, k_stride, v_stride, out_stride, grad_stride, d_stride, tokens, scale, reach,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and values, and of the same block of queries."""
    sentence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(bounds + sentence).to(tl.int64)
    length = (tl.load(bounds + sentence + 1) - start).to(tl.int32)
    if block * BLOCK >= length:
        return
    own, columns = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    queries, keys = query + start * q_stride + head * D, key + start * k_stride + head * D
    values, outs = value + start * v_stride + head * D, out + start * out_stride + head * D
    grads, sums = grad + start * grad_stride + head * D, lse + head.to(tl.int64) * tokens + start
    place = start * d_stride + head * D
    k = _load(keys, own, columns, k_stride, length, D)
    v = _load(values, own, columns, v_stride, length, D)
    dk = tl.zeros([BLOCK, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK, WIDTH], tl.float32)
    dq = tl.zeros([BLOCK, WIDTH], tl.float32)
    for first in range(0, length, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        q = _load(queries, rows, columns, q_stride, length, D)
        do = _load(grads, rows, columns, grad_stride, length, D)
        o = _load(outs, rows, columns, out_stride, length, D)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        logs = tl.load(sums + rows, mask=rows < length, other=0.0)
        weights = tl.exp2(_scores(q, k, rows, own, length, scale, reach, WINDOW) - logs[:, None])
        dv += tl.dot(tl.trans(weights.to(do.dtype)), do, input_precision="ieee")
        d_weights = tl.dot(do, tl.trans(v), input_precision="ieee")
        d_scores = (weights * (d_weights - delta[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(d_scores), q, input_precision="ieee")
        if length <= BLOCK:
            # The only block is that of the queries, too.
            dq += tl.dot(d_scores, k, input_precision="ieee")
    _store(d_key + place, dk, own, columns, d_stride, length, D)
    _store(d_value + place, dv, own, columns, d_stride, length, D)
    if length > BLOCK:
        q = _load(queries, own, columns, q_stride, length, D)
        do = _load(grads, own, columns, grad_stride, length, D)
        o = _load(outs, own, columns, out_stride, length, D)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        logs = tl.load(sums + own, mask=own < length, other=0.0)
        for first in range(0, length, BLOCK):
            others = first + tl.arange(0, BLOCK)
            k = _load(keys, others, columns, k_stride, length, D)
            v = _load(values, others, columns, v_stride, length, D)
            weights = tl.exp2(_scores(q, k, own, others, length, scale, reach, WINDOW) - logs[:, None])
            d_weights = tl.dot(do, tl.trans(v), input_precision="ieee")
            d_scores = (weights * (d_weights - delta[:, None]) * scale).to(q.dtype)
            dq += tl.dot(d_scores, k, input_precision="ieee")
    _store(d_query + place, dq, own, columns, d_stride, length, D)
