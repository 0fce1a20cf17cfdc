"""`FindLrResult`: the losses of a search for the learning rate, and the rate that they suggest."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flodl.core import TrainError
from flodl.core.files import write_atomic

from .drawing import draw

# The first rates are too low to change the loss, which is mostly noise there.
_SKIPPED_SHARE = 0.1
_MIN_POINTS = 8
# A loss that falls by less than this share of its range before is noise.
_MIN_FALL = 0.02


@dataclass(frozen=True)
class FindLrResult:
    """The rates that were tried, the loss at each of them, and a suggestion with its reason.

    `smoothed` are the losses without noise, which the suggestion is based on. `suggestion` is None if the
    loss did not fall. `stopped` is why the search ended early, or "".

    >>> losses = [1.0] * 10 + [0.9, 0.7, 0.4, 0.2, 0.1, 0.1, 0.2, 1.0]
    >>> result = FindLrResult.of([10 ** (at / 3 - 6) for at in range(18)], losses)
    >>> f"{result.suggestion:.0e}"
    '7e-03'
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    reason: str
    stopped: str = ""

    @classmethod
    def of(cls, rates: Sequence[float], losses: Sequence[float], *, stopped: str = "") -> FindLrResult:
        """Return the result for losses, the finite ones of which come first."""
        known = list(losses)
        while known and not math.isfinite(known[-1]):
            known.pop()
        smoothed = smooth(known)
        suggestion, reason = suggest(rates, smoothed)
        return cls(tuple(rates), tuple(losses), tuple(smoothed), suggestion, reason, stopped)

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the loss over the rate as a picture, and write it to a file if a path is given."""
        suffix = "" if path is None else os.path.splitext(path)[1].lower()
        if path is not None and suffix != ".svg":
            raise TrainError(f"{os.fspath(path)!r} does not end in .svg, and the picture is an SVG.")
        text = draw(self.rates, self.losses, self.smoothed, self.suggestion)
        if path is not None:
            write_atomic(path, text)
        return text

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        rate = "no suggestion" if self.suggestion is None else f"lr={self.suggestion:.2g}"
        return ". ".join(filter(None, [f"{rate}: {self.reason}", self.stopped]))


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the mean of each loss and its neighbors.

    >>> smooth([1.0, 0.0, 2.0])
    [1.0, 0.0, 2.0]
    """
    reach = len(losses) // 40 + (len(losses) > 10)
    found = []
    for at in range(len(losses)):
        # Equally many on both sides, so that a falling loss is not shifted.
        width = min(reach, at, len(losses) - 1 - at)
        part = losses[at - width : at + width + 1]
        found.append(sum(part) / len(part))
    return found


def suggest(rates: Sequence[float], smoothed: Sequence[float]) -> tuple[float | None, str]:
    """Return the rate at which the loss falls fastest, before its lowest value, and the reason."""
    if len(smoothed) < _MIN_POINTS:
        return None, f"only {len(smoothed)} losses are finite. Use a lower min_lr"
    first = int(len(rates) * _SKIPPED_SHARE)
    first = min(first, len(smoothed) - 3)
    lowest = min(range(first, len(smoothed)), key=lambda at: smoothed[at])
    scale = max(abs(smoothed[first]), abs(smoothed[lowest]), 1e-12)
    if lowest - first < 2 or smoothed[first] - smoothed[lowest] < _MIN_FALL * scale:
        return None, "the loss did not fall. Check the model and the data, or use other min_lr and max_lr"
    slopes = [
        (smoothed[after] - smoothed[before]) / math.log(rates[after] / rates[before])
        for before, after in pairwise(range(first, lowest + 1))
    ]
    steepest = first + min(range(len(slopes)), key=lambda at: slopes[at])
    rate = math.sqrt(rates[steepest] * rates[steepest + 1])
    reason = f"the loss falls fastest there; it is lowest at {rates[lowest]:.2g}"
    if lowest == len(rates) - 1:
        reason += ", the highest rate that was tried. A higher max_lr may show more"
    return rate, reason
