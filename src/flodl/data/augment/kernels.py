"""The Triton kernel that gathers and augments images.

Imported only if there is a CUDA device: it needs Triton, which CUDA builds of torch include.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["samples", "offsets", "coins"])
def gather_and_augment(
    images,
    samples,
    offsets,
    coins,
    scale,
    shift,
    output,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    FILL: tl.constexpr,
    GATHERS: tl.constexpr,
    CROPS: tl.constexpr,
    FLIPS: tl.constexpr,
    NORMALIZES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Gather an image, crop, flip and normalize it."""
    row = tl.program_id(0).to(tl.int64)
    pixels: tl.constexpr = CHANNELS * HEIGHT * WIDTH
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = at < pixels
    x = at % WIDTH
    y = at // WIDTH % HEIGHT
    channel = at // (WIDTH * HEIGHT)
    is_read = inside
    if FLIPS:
        is_flipped = tl.load(coins + row) != 0
        x = tl.where(is_flipped, WIDTH - 1 - x, x)
    if CROPS:
        y += tl.load(offsets + 2 * row).to(tl.int32) - PADDING
        x += tl.load(offsets + 2 * row + 1).to(tl.int32) - PADDING
        is_read = inside & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    sample = row
    if GATHERS:
        sample = tl.load(samples + row)
    source = images + sample * pixels
    values = tl.load(source + (channel * HEIGHT + y) * WIDTH + x, mask=is_read, other=FILL)
    if NORMALIZES:
        factors = tl.load(scale + at, mask=inside)
        values = tl.fma(values.to(tl.float32), factors, tl.load(shift + at, mask=inside))
    tl.store(output + row * pixels + at, values, mask=inside)
