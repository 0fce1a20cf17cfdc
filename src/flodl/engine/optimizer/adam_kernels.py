"""Adam's update of all parameters in a few launches, with the bits of torch's fused kernel.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def begin(places, counts, bad, skipped):
    """Count one more update of a parameter; where the flag is set, it counts as a skipped one."""
    which = tl.program_id(0)
    place = tl.load(places + which * 2).to(tl.pointer_type(tl.float32))
    count = tl.load(place) + 1.0
    flag = tl.load(bad)
    tl.store(counts + which, count)
    if flag != 1.0:
        tl.store(place, count)
    if which == 0:
        tl.store(skipped, tl.load(skipped) + flag.to(tl.float64))


@triton.jit
def _moved(weight, grad, mean, square, keep, keep_square, small, size, root, shrink):
    mean = tl.fma(mean, keep, (1.0 - keep) * grad)
    square = tl.fma(square, keep_square, (1.0 - keep_square) * (grad * grad))
    below = tl.div_rn(tl.sqrt_rn(square), root) + small
    if shrink != 0.0:
        weight = tl.fma(-shrink, weight, weight)
    return weight - tl.div_rn(size * mean, below), mean, square


@triton.jit
def update(rows, places, settings, powers, bad, SIZE: tl.constexpr):
    """Update one block of numbers of one parameter, unless the flag is set."""
    if tl.load(bad) == 1.0:
        return
    row = rows + tl.program_id(0).to(tl.int64) * 6
    weights = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    grads = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    means = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    squares = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16)
    which, count = tl.load(row + 4), tl.load(row + 5)
    keep, keep_square = tl.load(settings + which * 4), tl.load(settings + which * 4 + 1)
    small, decay = tl.load(settings + which * 4 + 2), tl.load(settings + which * 4 + 3)
    rate = tl.load(tl.load(places + which * 2 + 1).to(tl.pointer_type(tl.float32)))
    size = tl.div_rn(rate, 1.0 - tl.load(powers + which * 2))
    root = tl.sqrt_rn(1.0 - tl.load(powers + which * 2 + 1))
    shrink = rate * decay
    at = tl.arange(0, SIZE)
    if count == SIZE:
        # Without a mask, which keeps whole vectors from being read at once.
        weight, grad = tl.load(weights + at), tl.load(grads + at)
        mean, square = tl.load(means + at), tl.load(squares + at)
        weight, mean, square = _moved(
            weight, grad, mean, square, keep, keep_square, small, size, root, shrink
        )
        tl.store(weights + at, weight)
        tl.store(means + at, mean)
        tl.store(squares + at, square)
    else:
        inside = at < count
        weight, grad = tl.load(weights + at, mask=inside), tl.load(grads + at, mask=inside)
        mean, square = tl.load(means + at, mask=inside), tl.load(squares + at, mask=inside)
        weight, mean, square = _moved(
            weight, grad, mean, square, keep, keep_square, small, size, root, shrink
        )
        tl.store(weights + at, weight, mask=inside)
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
