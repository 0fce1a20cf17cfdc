"""Small kernels that follow an address: a recording may then read a batch wherever it lies.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def fetch(table, turn, addresses, slots, stride, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Bring the addresses of this turn from the host's memory to the device's.

    One block does it, each of its threads for one address: where every thread of 256 blocks read both for
    itself, a step took 2 ms longer on an H200.
    """
    lane = tl.arange(0, LANES)
    mine = lane < WIDTH
    slot = table.to(tl.pointer_type(tl.int64)) + (tl.load(turn) % slots) * stride
    # The host writes there all the time.
    tl.store(addresses + lane, tl.load(slot + lane, mask=mine, volatile=True), mask=mine)


@triton.jit
def deliver(addresses, plan, INPUTS: tl.constexpr, SIZE: tl.constexpr):
    """Copy what the addresses point to; the plan says where to, and how many 4-byte words."""
    first, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for place in tl.static_range(INPUTS):
        source = tl.load(addresses + place).to(tl.pointer_type(tl.int32))
        target = tl.load(plan + place * 2).to(tl.pointer_type(tl.int32))
        words = tl.load(plan + place * 2 + 1)
        for start in range(first * SIZE, words, blocks * SIZE):
            at = start + tl.arange(0, SIZE)
            inside = at < words
            tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def give(addresses, turn, number, place):
    """Write one float32 to where an address points to, and count the turn."""
    target = tl.load(addresses + place).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(number))
    tl.store(turn, tl.load(turn) + 1)
