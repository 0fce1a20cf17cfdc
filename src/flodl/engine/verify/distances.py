"""The results of two runs of one window, their distance, and how far rounding alone may move them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .gradients import Gradients, relative_difference
from .parts import Parts, part_distances

# If eager's gradients are farther from those in float64, the step does something else in float64.
MAX_FLOAT64_DISTANCE = 0.1
# A part with a relative error of one half or more is mostly rounding.
MOSTLY_ROUNDING = 0.5
# Many roundings in a row may move a result this many times as far as one bit in every weight does.
NOISE_PER_PERTURBATION = 5.0

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class WindowOutputs:
    """The gradients of a window, and the values named by its last micro-batch."""

    gradients: Gradients
    values: Values


@dataclass(frozen=True)
class WindowResult:
    """Everything that a window produced: its outputs, and the same split into parts."""

    outputs: WindowOutputs
    parts: Parts
    # Where distances are computed.
    device: torch.device

    def distance(self, other: WindowResult) -> float:
        """Return the distance of all gradients of another result from these, relative to their norm."""
        return relative_difference(self.outputs.gradients, other.outputs.gradients, self.device)

    def outliers(self, other: WindowResult) -> dict[str, float]:
        """Return the parts of another result that are too far from these, with their distances."""
        apart = part_distances(self.parts, other.parts)
        return {name: distance for name, distance in apart.items() if not distance <= self.parts[name].limit}


class RoundingNoise:
    """The error of eager itself: its distance from exact numbers, from its rerun, and from perturbed runs."""

    def __init__(
        self,
        real: WindowResult,
        again: WindowResult,
        exact: WindowResult,
        perturbed: Iterable[WindowResult],
    ) -> None:
        self._from_exact = part_distances(exact.parts, real.parts)
        self._from_rerun = part_distances(real.parts, again.parts)
        self._from_perturbed: list[dict[str, float]] = []
        self.total = exact.distance(real)
        # How far one bit in every weight moves all gradients together.
        self._moved = 0.0
        for result in perturbed:
            self._from_perturbed.append(part_distances(real.parts, result.parts))
            moved = real.distance(result)
            self._moved = max(self._moved, moved)
            self.total = max(self.total, noise_bound(moved, MAX_FLOAT64_DISTANCE))

    def eager_error(self, name: str) -> float:
        """Return how far a part of eager's result is from exact numbers, or from its rerun."""
        return max(self._from_exact.get(name, 0.0), self._from_rerun.get(name, 0.0))

    def of(self, name: str) -> float:
        """Return how far rounding alone may move a part."""
        bounds = (noise_bound(apart.get(name, 0.0), MOSTLY_ROUNDING) for apart in self._from_perturbed)
        return max((self.eager_error(name), *bounds))

    def may_explain(self, real: WindowResult, candidate: WindowResult) -> bool:
        """Return whether eager's gradients are so inexact that all differences may be rounding errors.

        That is how it is when a model has memorized its batch: large terms cancel.
        """
        most = NOISE_PER_PERTURBATION * self._moved
        if not most > MAX_FLOAT64_DISTANCE or not real.distance(candidate) <= most:
            return False
        return all(
            distance <= NOISE_PER_PERTURBATION * max(apart.get(name, 0.0) for apart in self._from_perturbed)
            for name, distance in real.outliers(candidate).items()
        )


def noise_bound(moved: float, most: float) -> float:
    """Return how far rounding may move a result that a perturbation of one bit moves this far.

    >>> noise_bound(0.001, 0.1), noise_bound(0.5, 0.1), noise_bound(float("nan"), 0.1)
    (0.005, 0.1, 0.0)
    """
    return min(most, NOISE_PER_PERTURBATION * moved) if moved == moved else 0.0
