"""What runs of one window have come to, how far they are apart, and how far rounding alone may take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .gradients import Gradients, relative_difference
from .parts import Parts, part_distances

# How far eager's gradients may be from those in float64: further off, the step is not the same there.
MAX_FLOAT64_DISTANCE = 0.1
# A part of which eager gets no more than half right is rounding and little else.
MOSTLY_ROUNDING = 0.5
# How many times as far as one bit in every weight takes them, many roundings in a row may take numbers.
NOISE_PER_PERTURBATION = 5.0

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class WindowOutputs:
    """What a window shows of itself: its gradients, and the values that its last micro-batch named."""

    gradients: Gradients
    values: Values


@dataclass(frozen=True)
class WindowResult:
    """What a window has come to."""

    shown: WindowOutputs
    parts: Parts

    def distance(self, other: WindowResult) -> float:
        """Give how far all gradients of another end are from these, relative to their norm."""
        return relative_difference(self.shown.gradients, other.shown.gradients)

    def outliers(self, other: WindowResult) -> dict[str, float]:
        """Give the parts of another end that are too far from these, whatever all together are."""
        apart = part_distances(self.parts, other.parts)
        return {name: by for name, by in apart.items() if not by <= self.parts[name].limit}


class RoundingNoise:
    """How far eager itself is from exact numbers, from its own second run, and after each of a few nudges."""

    def __init__(
        self, real: WindowResult, again: WindowResult, exact: WindowResult, moved: Iterable[WindowResult]
    ) -> None:
        self._from_exact = part_distances(exact.parts, real.parts)
        self._repeated = part_distances(real.parts, again.parts)
        self._moved: list[dict[str, float]] = []
        self.total = exact.distance(real)
        for end in moved:
            self._moved.append(part_distances(real.parts, end.parts))
            self.total = max(self.total, noise_bound(real.distance(end), MAX_FLOAT64_DISTANCE))

    def eager_error(self, name: str) -> float:
        """Give how far a part is from exact numbers, or from itself."""
        return max(self._from_exact.get(name, 0.0), self._repeated.get(name, 0.0))

    def of(self, name: str) -> float:
        """Give how far a part may be off by rounding alone."""
        swayed = (noise_bound(apart.get(name, 0.0), MOSTLY_ROUNDING) for apart in self._moved)
        return max((self.eager_error(name), *swayed))


def noise_bound(moved: float, most: float) -> float:
    """Give what rounding may come to where a nudge comes to so much.

    >>> noise_bound(0.001, 0.1), noise_bound(0.5, 0.1), noise_bound(float("nan"), 0.1)
    (0.005, 0.1, 0.0)
    """
    return min(most, NOISE_PER_PERTURBATION * moved) if moved == moved else 0.0
