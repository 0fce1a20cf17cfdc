"""Drawing a schedule as one line of text, to inspect it before training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ._arguments import check_integer

_BARS = "▁▂▃▄▅▆▇█"


def preview(owner: str, lr: Callable[[int], float], total_steps: int, *, width: int) -> str:
    """Draw `lr` over `total_steps` steps, and print its first, highest and last value.

    >>> print(preview("ramp", lambda step: 0.1 * step, 8, width=8))
    ▁▂▃▄▅▆▇█
    step 0: 0 · highest 0.7 at step 7 · step 7: 0.7
    """
    check_integer(
        owner, "total_steps", total_steps, at_least=1, hint="Pass the number of optimizer updates to show."
    )
    check_integer(owner, "width", width, at_least=1, hint="Pass the number of characters to draw.")
    values = [lr(step) for step in range(total_steps)]
    highest = max(values)
    peak = values.index(highest)
    # Bars start at zero, so half the height is half the learning rate.
    line = "".join(_bar(mean, highest) for mean in _bucket_means(values, min(width, total_steps)))
    ends = f"step 0: {values[0]:.4g}", f"step {total_steps - 1}: {values[-1]:.4g}"
    return f"{line}\n{ends[0]} · highest {highest:.4g} at step {peak} · {ends[1]}"


def _bucket_means(values: list[float], count: int) -> list[float]:
    edges = [index * len(values) // count for index in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def _bar(value: float, highest: float) -> str:
    share = value / highest if highest > 0 else 0.0
    return _BARS[min(max(round(share * (len(_BARS) - 1)), 0), len(_BARS) - 1)]
