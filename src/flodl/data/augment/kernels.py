"""One kernel from images to a batch of them, augmented.

Imported only where there is a CUDA device; needs Triton, which comes with torch there.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["samples", "places", "coins"])
def make_images(
    images,
    samples,
    places,
    coins,
    scale,
    shift,
    made,
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
    """Take an image, cut a window of it, mirror it and normalise it."""
    row = tl.program_id(0).to(tl.int64)
    pixels: tl.constexpr = CHANNELS * HEIGHT * WIDTH
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = at < pixels
    x = at % WIDTH
    y = at // WIDTH % HEIGHT
    channel = at // (WIDTH * HEIGHT)
    seen = inside
    if FLIPS:
        is_mirrored = tl.load(coins + row) != 0
        x = tl.where(is_mirrored, WIDTH - 1 - x, x)
    if CROPS:
        y += tl.load(places + 2 * row).to(tl.int32) - PADDING
        x += tl.load(places + 2 * row + 1).to(tl.int32) - PADDING
        seen = inside & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    sample = row
    if GATHERS:
        sample = tl.load(samples + row)
    source = images + sample * pixels
    values = tl.load(source + (channel * HEIGHT + y) * WIDTH + x, mask=seen, other=FILL)
    if NORMALIZES:
        factors = tl.load(scale + at, mask=inside)
        values = tl.fma(values.to(tl.float32), factors, tl.load(shift + at, mask=inside))
    tl.store(made + row * pixels + at, values, mask=inside)
