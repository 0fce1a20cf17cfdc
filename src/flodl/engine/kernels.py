"""Small kernels that follow an address: a recording may then read a batch wherever it lies.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _addresses(table, turn, slots, stride):
    """Give where the addresses of this turn begin, in the host's memory."""
    return table.to(tl.pointer_type(tl.int64)) + (tl.load(turn) % slots) * stride


@triton.jit
def deliver(table, turn, plan, slots, stride, INPUTS: tl.constexpr, SIZE: tl.constexpr):
    """Copy what the addresses of this turn point to; the plan says where to, and how many 4-byte words."""
    addresses = _addresses(table, turn, slots, stride)
    first, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for place in tl.static_range(INPUTS):
        # The host writes there all the time.
        source = tl.load(addresses + place, volatile=True).to(tl.pointer_type(tl.int32))
        target = tl.load(plan + place * 2).to(tl.pointer_type(tl.int32))
        words = tl.load(plan + place * 2 + 1)
        for start in range(first * SIZE, words, blocks * SIZE):
            at = start + tl.arange(0, SIZE)
            inside = at < words
            tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def give(table, turn, number, place, slots, stride):
    """Write one float32 to where an address of this turn points to, and count the turn."""
    addresses = _addresses(table, turn, slots, stride)
    target = tl.load(addresses + place, volatile=True).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(number))
    tl.store(turn, tl.load(turn) + 1)
