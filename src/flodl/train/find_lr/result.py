"""`FindLrResult`: the losses of a search for the learning rate, and the rate that they suggest."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from flodl.core import TrainError
from flodl.core.output_files import check_path, write_output

from .drawing import draw

# The first rates are too low to change the loss, which is mostly noise there.
_SKIPPED_SHARE = 0.1
_MIN_POINTS = 8
# A loss that falls by less than this share of its range before is noise.
_MIN_FALL = 0.02
# The losses are smoothed until their fall is this many times their remaining noise; a lower multiple will do.
_WANTED_FALL = 6.0
_NOISY_FALL = 4.0
# The loss has moved once it has fallen by this share of its whole fall.
_MOVED = 0.1


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
        curve = Curve.of(known, int(len(rates) * _SKIPPED_SHARE))
        smoothed = curve.smoothed
        suggestion, reason = suggest(rates, curve)
        return cls(tuple(rates), tuple(losses), tuple(smoothed), suggestion, reason, stopped)

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the loss over the rate as a picture, and write it to a file if a path is given."""
        if path is not None:
            check_path(path, example="rates.svg", error=TrainError)
        suffix = "" if path is None else os.path.splitext(path)[1].lower()
        if path is not None and suffix != ".svg":
            raise TrainError(f"{os.fspath(path)!r} does not end in .svg, and the picture is an SVG.")
        text = draw(self.rates, self.losses, self.smoothed, self.suggestion)
        if path is not None:
            write_output(path, text, example="rates.svg", error=TrainError)
        return text

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        rate = "no suggestion" if self.suggestion is None else f"lr={self.suggestion:.2g}"
        return ". ".join(filter(None, [f"{rate}: {self.reason}", self.stopped]))


def smooth(losses: Sequence[float], reach: int | None = None) -> list[float]:
    """Return the mean of each loss and its neighbors, up to `reach` on each side.

    >>> smooth([1.0, 0.0, 2.0])
    [1.0, 0.0, 2.0]
    """
    reach = _least_reach(losses) if reach is None else reach
    found = []
    for at in range(len(losses)):
        # Equally many on both sides, so that a falling loss is not shifted.
        width = min(reach, at, len(losses) - 1 - at)
        part = losses[at - width : at + width + 1]
        found.append(sum(part) / len(part))
    return found


def _least_reach(losses: Sequence[float]) -> int:
    return len(losses) // 40 + (len(losses) > 10)


@dataclass(frozen=True)
class Curve:
    """Losses that are smoothed as far as their noise requires.

    >>> curve = Curve.of([1.0, 1.0, 1.0, 1.0, 0.9, 0.5, 0.2, 0.1, 0.4], 1)
    >>> curve.lowest, round(curve.fall, 3), curve.is_noisy
    (7, 0.9, False)
    """

    smoothed: list[float]
    # Where the used part of the curve starts, and where the curve is lowest.
    first: int
    lowest: int
    # The loss before it falls, and by how much it falls.
    level: float
    fall: float
    # By how many more losses on each side it is smoothed than usual, because of noise.
    extra: int
    # The standard deviation of its lowest value.
    noise: float

    @classmethod
    def of(cls, losses: Sequence[float], first: int) -> Curve:
        """Smooth losses, of which those before `first` do not count."""
        if not losses:
            return cls([], 0, 0, level=0.0, fall=0.0, extra=0, noise=0.0)
        least = _least_reach(losses)
        first = max(0, min(first, len(losses) - 3))
        for reach in range(least, max(least, len(losses) // 8) + 1):
            curve = cls._smoothed(losses, first, reach, extra=reach - least)
            if curve.fall >= _WANTED_FALL * curve.noise:
                break
        return curve

    @classmethod
    def _smoothed(cls, losses: Sequence[float], first: int, reach: int, *, extra: int) -> Curve:
        smoothed = smooth(losses, reach)
        # The last losses have few neighbors.
        end = max(len(losses) - (reach // 2 if extra else 0), first + 1)
        lowest = min(range(first, end), key=lambda at: smoothed[at])
        before = losses[first : first + max(1, min(len(losses) // 8, lowest - first))]
        level = sum(before) / len(before) if extra else smoothed[first]
        fall = level - smoothed[lowest]
        width = min(reach, lowest, len(losses) - 1 - lowest)
        noise = _noise(losses[: lowest + 1]) / math.sqrt(max(2 * width, 0) + 1)
        return cls(smoothed, first, lowest, level, fall, extra, noise)

    @property
    def is_noisy(self) -> bool:
        """Whether the decrease may be just noise."""
        return self.fall < _NOISY_FALL * self.noise

    @property
    def moves_at(self) -> int:
        """Where the loss leaves its level for good, before its lowest value."""
        limit = self.level - _MOVED * self.fall
        return max(
            (at for at in range(self.first, self.lowest) if self.smoothed[at] >= limit), default=self.first
        )


def _noise(losses: Sequence[float]) -> float:
    """Return the standard deviation of losses around their trend, from their second differences."""
    turns = sorted(abs(a - 2 * b + c) for a, b, c in zip(losses, losses[1:], losses[2:]))
    return 1.4826 * turns[len(turns) // 2] / math.sqrt(6) if turns else 0.0


def suggest(rates: Sequence[float], curve: Curve) -> tuple[float | None, str]:
    """Return the rate at which the loss falls fastest, before its lowest value, and the reason."""
    smoothed, first, lowest = curve.smoothed, curve.first, curve.lowest
    if len(smoothed) < _MIN_POINTS:
        return None, f"only {len(smoothed)} losses are finite. Use a lower min_lr"
    scale = max(abs(curve.level), abs(smoothed[lowest]), 1e-12)
    if lowest - first < 2 or curve.fall < _MIN_FALL * scale:
        return None, "the loss did not fall. Check the model and the data, or use other min_lr and max_lr"
    if curve.is_noisy:
        return None, (
            "the loss varies more between batches than it falls. Use larger batches, accumulate=, or "
            "more num_steps"
        )
    steepest = min(range(curve.moves_at, lowest), key=lambda at: _slope(rates, curve, at))
    rate = math.sqrt(rates[steepest] * rates[steepest + 1])
    reason = f"the loss falls fastest there; it is lowest at {rates[lowest]:.2g}"
    if lowest >= len(rates) - 1 - curve.extra:
        near = "" if lowest == len(rates) - 1 else "near "
        reason += f", {near}the highest rate that was tried. A higher max_lr may show more"
    return rate, reason


def _slope(rates: Sequence[float], curve: Curve, at: int) -> float:
    """Return how the loss changes from a rate to the next one, or between distant ones if it is noisy."""
    reach = min(curve.extra, at, len(curve.smoothed) - 2 - at)
    before, after = at - reach, at + 1 + reach
    return (curve.smoothed[after] - curve.smoothed[before]) / math.log(rates[after] / rates[before])
