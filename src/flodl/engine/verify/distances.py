"""What runs of one window have come to, how far they are apart, and how far rounding alone may take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .gradients import Gradients, relative_difference
from .parts import Effects, distances

# How far eager's gradients may be from those in float64: further off, the step is not the same there.
LIKE_EAGER = 0.1
# A part of which eager gets no more than half right is rounding and little else.
ONLY_ROUNDING = 0.5
# How many times as far as one bit in every weight takes them, many roundings in a row may take numbers.
SWAY = 5.0

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shown:
    """What a window shows of itself: its gradients, and the values that its last micro-batch named."""

    gradients: Gradients
    values: Values


@dataclass(frozen=True)
class End:
    """What a window has come to."""

    shown: Shown
    effects: Effects

    def distance(self, other: End) -> float:
        """Give how far all gradients of another end are from these, relative to their norm."""
        return relative_difference(self.shown.gradients, other.shown.gradients)

    def strays(self, other: End) -> dict[str, float]:
        """Give the parts of another end that are too far from these, whatever all together are."""
        apart = distances(self.effects, other.effects)
        return {name: by for name, by in apart.items() if not by <= self.effects[name].limit}


class Looseness:
    """How far eager itself is from exact numbers, from its own second run, and after each of a few nudges."""

    def __init__(self, real: End, again: End, exact: End, moved: Iterable[End]) -> None:
        self._from_exact = distances(exact.effects, real.effects)
        self._repeated = distances(real.effects, again.effects)
        self._moved: list[dict[str, float]] = []
        self.of_all = exact.distance(real)
        for end in moved:
            self._moved.append(distances(real.effects, end.effects))
            self.of_all = max(self.of_all, _sway(real.distance(end), LIKE_EAGER))

    def of_eager(self, name: str) -> float:
        """Give how far a part is from exact numbers, or from itself."""
        return max(self._from_exact.get(name, 0.0), self._repeated.get(name, 0.0))

    def of(self, name: str) -> float:
        """Give how far a part may be off by rounding alone."""
        swayed = (_sway(apart.get(name, 0.0), ONLY_ROUNDING) for apart in self._moved)
        return max((self.of_eager(name), *swayed))


def _sway(moved: float, most: float) -> float:
    """Give what rounding may come to where a nudge comes to so much.

    >>> _sway(0.001, 0.1), _sway(0.5, 0.1), _sway(float("nan"), 0.1)
    (0.005, 0.1, 0.0)
    """
    return min(most, SWAY * moved) if moved == moved else 0.0
