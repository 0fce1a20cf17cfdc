"""Triton kernels that update all parameters with Adam in two launches, equal to torch's fused kernel.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def begin(pointers, counts, bad, skipped):
    """Count one more update of a parameter, or a skipped one if the flag is set."""
    index = tl.program_id(0)
    step = tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))
    count = tl.load(step) + 1.0
    flag = tl.load(bad)
    tl.store(counts + index, count)
    if flag != 1.0:
        tl.store(step, count)
    if index == 0:
        tl.store(skipped, tl.load(skipped) + flag.to(tl.float64))


@triton.jit
def _adam(weight, grad, mean, square, beta1, beta2, eps, step_size, root, decay):
    mean = tl.fma(mean, beta1, (1.0 - beta1) * grad)
    square = tl.fma(square, beta2, (1.0 - beta2) * (grad * grad))
    denominator = tl.div_rn(tl.sqrt_rn(square), root) + eps
    if decay != 0.0:
        weight = tl.fma(-decay, weight, weight)
    return weight - tl.div_rn(step_size * mean, denominator), mean, square


@triton.jit
def update(rows, pointers, settings, powers, bad, SIZE: tl.constexpr):
    """Update one block of one parameter, unless the flag is set."""
    if tl.load(bad) == 1.0:
        return
    row = rows + tl.program_id(0).to(tl.int64) * 6
    weights = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    grads = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    means = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    squares = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16)
    index, count = tl.load(row + 4), tl.load(row + 5)
    beta1, beta2 = tl.load(settings + index * 4), tl.load(settings + index * 4 + 1)
    eps, weight_decay = tl.load(settings + index * 4 + 2), tl.load(settings + index * 4 + 3)
    lr = tl.load(tl.load(pointers + index * 2 + 1).to(tl.pointer_type(tl.float32)))
    step_size = tl.div_rn(lr, 1.0 - tl.load(powers + index * 2))
    root = tl.sqrt_rn(1.0 - tl.load(powers + index * 2 + 1))
    decay = lr * weight_decay
    at = tl.arange(0, SIZE)
    if count == SIZE:
        # Without a mask, which would prevent vector loads.
        weight, grad = tl.load(weights + at), tl.load(grads + at)
        mean, square = tl.load(means + at), tl.load(squares + at)
        weight, mean, square = _adam(weight, grad, mean, square, beta1, beta2, eps, step_size, root, decay)
        tl.store(weights + at, weight)
        tl.store(means + at, mean)
        tl.store(squares + at, square)
    else:
        inside = at < count
        weight, grad = tl.load(weights + at, mask=inside), tl.load(grads + at, mask=inside)
        mean, square = tl.load(means + at, mask=inside), tl.load(squares + at, mask=inside)
        weight, mean, square = _adam(weight, grad, mean, square, beta1, beta2, eps, step_size, root, decay)
        tl.store(weights + at, weight, mask=inside)
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
