"""Triton kernels that update all parameters with Adam in two launches, equal to torch's fused kernel.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def begin(pointers, counts):
    """Write the number of one parameter's update."""
    index = tl.program_id(0).to(tl.int64)
    step = tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))
    tl.store(counts + index, tl.load(step) + 1.0)


@triton.jit
def begin_with_check(rows, pointers, counts, bad, SIZE: tl.constexpr):
    """Write the number of each parameter's update; set the flag if a gradient is not finite.

    The first block of a parameter has a negative length.
    """
    row = rows + tl.program_id(0).to(tl.int64) * 6
    index, count = tl.load(row + 4), tl.load(row + 5)
    if count < 0:
        tl.store(counts + index, tl.load(tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))) + 1.0)
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
def update(
    rows, pointers, settings, counts, powers, bad, skipped, scale, SIZE: tl.constexpr, EVICTION: tl.constexpr
):
    """Update one block of one parameter, unless the flag is set; count the update, or a skipped one.

    With a `scale`, gradients are multiplied by it first, also those of a skipped update.
    """
    block = tl.program_id(0).to(tl.int64)
    row = rows + block * 6
    flag = tl.load(bad)
    weights = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    grads = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    means = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    squares = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16)
    index, count = tl.load(row + 4), tl.load(row + 5)
    at = tl.arange(0, SIZE)
    inside = at < tl.abs(count)
    if block == 0:
        tl.store(skipped, tl.load(skipped) + flag.to(tl.float64))
    if flag == 1.0:
        if scale is not None:
            tl.store(grads + at, tl.load(grads + at, mask=inside) * tl.load(scale), mask=inside)
        return
    # Before the settings, whose loads depend on each other.
    if tl.abs(count) == SIZE:
        # Without a mask, which would prevent vector loads.
        weight = tl.load(weights + at, eviction_policy=EVICTION)
        grad = tl.load(grads + at, eviction_policy=EVICTION)
        mean = tl.load(means + at, eviction_policy=EVICTION)
        square = tl.load(squares + at, eviction_policy=EVICTION)
    else:
        weight, grad = tl.load(weights + at, mask=inside), tl.load(grads + at, mask=inside)
        mean, square = tl.load(means + at, mask=inside), tl.load(squares + at, mask=inside)
    beta1, beta2 = tl.load(settings + index * 4), tl.load(settings + index * 4 + 1)
    eps, weight_decay = tl.load(settings + index * 4 + 2), tl.load(settings + index * 4 + 3)
    lr = tl.load(tl.load(pointers + index * 2 + 1).to(tl.pointer_type(tl.float32)))
    step_size = tl.div_rn(lr, 1.0 - tl.load(powers + index * 2))
    root = tl.sqrt_rn(1.0 - tl.load(powers + index * 2 + 1))
    decay = lr * weight_decay
    factor = 1.0
    if scale is not None:
        factor = tl.load(scale)
        grad = grad * factor
    weight, mean, square = _adam(weight, grad, mean, square, beta1, beta2, eps, step_size, root, decay)
    if tl.abs(count) == SIZE:
        tl.store(weights + at, weight, eviction_policy=EVICTION)
        tl.store(means + at, mean, eviction_policy=EVICTION)
        tl.store(squares + at, square, eviction_policy=EVICTION)
        # Multiplied by 1, finite gradients stay as they are.
        if factor != 1.0:
            tl.store(grads + at, grad, eviction_policy=EVICTION)
    else:
        tl.store(weights + at, weight, mask=inside)
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
        if factor != 1.0:
            tl.store(grads + at, grad, mask=inside)
    if count < 0:
        step = tl.load(pointers + index * 2).to(tl.pointer_type(tl.float32))
        tl.store(step, tl.load(counts + index))
