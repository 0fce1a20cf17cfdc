"""Triton kernels that update all parameters with Adam in two launches, equal to torch's fused kernel.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def begin(rows, pointers, counts, bad, CHECKS: tl.constexpr, SIZE: tl.constexpr):
    """Write the number of each parameter's update; with CHECKS, set the flag if a gradient is not finite.

    The first block of a parameter has a negative length.
    """
    row = rows + tl.program_id(0).to(tl.int64) * 6
    index, count = tl.load(row + 4), tl.load(row + 5)
    if count < 0:
        tl.store(counts + index, tl.load(tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))) + 1.0)
    if CHECKS:
        grads = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
        at = tl.arange(0, SIZE)
        if tl.abs(count) == SIZE:
            # Without a mask, which would prevent vector loads.
            grad = tl.load(grads + at)
        else:
            grad = tl.load(grads + at, mask=at < tl.abs(count), other=0.0)
        exponent = grad.to(tl.int32, bitcast=True) & 0x7F800000
        # All bits of the exponent are set in NaN and infinity only.
        if tl.max(exponent, axis=0) == 0x7F800000:
            tl.store(bad, 1.0)


@triton.jit
def _adam(weight, grad, mean, square, beta1, beta2, eps, step_size, root, decay):
    mean = tl.fma(mean, beta1, (1.0 - beta1) * grad)
    square = tl.fma(square, beta2, (1.0 - beta2) * (grad * grad))
    denominator = tl.div_rn(tl.sqrt_rn(square), root) + eps
    if decay != 0.0:
        weight = tl.fma(-decay, weight, weight)
    return weight - tl.div_rn(step_size * mean, denominator), mean, square


@triton.jit
def update(rows, pointers, settings, counts, powers, bad, skipped, SIZE: tl.constexpr):
    """Update one block of one parameter, unless the flag is set; count the update, or a skipped one."""
    block = tl.program_id(0).to(tl.int64)
    flag = tl.load(bad)
    if block == 0:
        tl.store(skipped, tl.load(skipped) + flag.to(tl.float64))
    if flag == 1.0:
        return
    row = rows + block * 6
    weights = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    grads = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    means = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    squares = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16)
    index, count = tl.load(row + 4), tl.load(row + 5)
    if count < 0:
        step = tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))
        tl.store(step, tl.load(counts + index))
        count = -count
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
