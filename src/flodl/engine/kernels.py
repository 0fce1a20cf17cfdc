"""Small kernels that follow an address: a recording may then read a batch wherever it lies.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def fetch(table, turn, row, slots, width, SIZE: tl.constexpr):
    """Take the addresses of this turn out of the host's table, and count the turn."""
    now = tl.load(turn)
    columns = tl.arange(0, SIZE)
    inside = columns < width
    addresses = table.to(tl.pointer_type(tl.int64)) + (now % slots) * width + columns
    tl.store(row + columns, tl.load(addresses, mask=inside, volatile=True), mask=inside)
    tl.store(turn, now + 1)


@triton.jit
def copy_in(row, place, static, words, SIZE: tl.constexpr):
    """Copy 4-byte words from where an address points to."""
    source = tl.load(row + place).to(tl.pointer_type(tl.int32))
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < words
    tl.store(static + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def copy_out(row, place, number):
    """Write one float32 to where an address points to."""
    target = tl.load(row + place).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(number))
