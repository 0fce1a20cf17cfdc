"""Small kernels that follow an address, so that a recording can read a batch wherever it is in memory.

Imported only if there is a CUDA device; requires Triton, which torch for CUDA includes.
"""

from __future__ import annotations

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def fetch(table, turn, addresses, slots, stride, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Copy the addresses of this turn from pinned host memory to the device.

    One block, one thread per address: when every thread of 256 blocks read them itself, a step took 2 ms
    longer on an H200.
    """
    lane = tl.arange(0, LANES)
    mine = lane < WIDTH
    slot = table.to(tl.pointer_type(tl.int64)) + (tl.load(turn) % slots) * stride
    # The host writes to it all the time.
    tl.store(addresses + lane, tl.load(slot + lane, mask=mine, volatile=True), mask=mine)


@triton.jit
def deliver(addresses, plan, INPUTS: tl.constexpr, SIZE: tl.constexpr):
    """Copy what the addresses point to; the plan has the target and the number of 4-byte words."""
    first, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for index in tl.static_range(INPUTS):
        source = tl.load(addresses + index).to(tl.pointer_type(tl.int32))
        target = tl.load(plan + index * 2).to(tl.pointer_type(tl.int32))
        words = tl.load(plan + index * 2 + 1)
        for start in range(first * SIZE, words, blocks * SIZE):
            at = start + tl.arange(0, SIZE)
            inside = at < words
            tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def give(addresses, turn, number, index):
    """Write one float32 to an address, and count the turn."""
    target = tl.load(addresses + index).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(number))
    tl.store(turn, tl.load(turn) + 1)
