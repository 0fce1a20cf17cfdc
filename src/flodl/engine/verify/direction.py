"""The direction of gradients that are mostly rounding errors, where distances prove nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..device.tensors import square_sum
from .gradients import Gradients

# Below this cosine between eager's and exact gradients, eager's say nothing about the direction either.
MIN_COSINE = 0.1
# The candidate's cosine must be at least this fraction of eager's, for all gradients together and for one.
# Between the two fractions, a window is doubtful.
OF_ALL, OF_ONE = 0.8, 0.4
# The longest that a candidate's gradients may be, relative to eager's, or the other way round.
MAX_STRETCH = 1.5


@dataclass(frozen=True)
class Direction:
    """How well some gradients agree with exact ones: cosines of eager and candidate, and their lengths."""

    eager: float
    candidate: float
    stretch: float

    @property
    def is_known(self) -> bool:
        """Whether eager's gradients point in the direction of the exact ones at all."""
        return self.eager >= MIN_COSINE

    @property
    def is_kept(self) -> bool:
        """Whether the candidate's gradients point there as well, and are as long as eager's."""
        return self._is_kept_by(OF_ALL)

    @property
    def may_be_kept(self) -> bool:
        """Whether the difference may be due to chance."""
        return self._is_kept_by(OF_ONE)

    def _is_kept_by(self, fraction: float) -> bool:
        is_as_long = 1 / MAX_STRETCH <= self.stretch <= MAX_STRETCH
        return self.candidate >= fraction * self.eager and is_as_long


class Directions:
    """Directions of the gradients of a window, of all together and of each parameter.

    In bfloat16, the gradients of a deep network with batch norms can be farther from exact ones than zeros
    are: measured for ResNet-50, 1.05 to 1.3 of their norm. They still point in the same direction, with a
    cosine of 0.13 to 0.6, and so do those of any correct candidate. A candidate that leaves out one residual
    connection in its backward has 0.7 of eager's cosine.

    >>> cpu = torch.device("cpu")
    >>> exact, eager = [torch.tensor([3.0, 0.0])], [torch.tensor([3.0, 4.0])]
    >>> found = Directions(exact, eager, [torch.tensor([3.0, -4.0])], device=cpu)
    >>> found.of_all
    Direction(eager=0.6, candidate=0.6, stretch=1.0)
    >>> Directions(exact, eager, [torch.zeros(2)], device=cpu).of_all.is_kept
    False
    """

    def __init__(
        self, exact: Gradients, eager: Gradients, candidate: Gradients, *, device: torch.device
    ) -> None:
        self._places: list[int] = []
        self._sizes: list[int] = []
        rows = []
        for place, (right, ours, theirs) in enumerate(zip(exact, eager, candidate, strict=True)):
            if right is None or ours is None or theirs is None:
                continue
            self._places.append(place)
            self._sizes.append(right.numel())
            norms = [square_sum(grad, device=device) for grad in (right, ours, theirs)]
            apart = [square_sum(right, minus=grad, device=device) for grad in (ours, theirs)]
            rows.append(torch.stack([*norms, *apart]))
        self._sums = torch.stack(rows).cpu() if rows else torch.zeros(0, 5)
        self.of_all = _direction(self._sums.sum(0).tolist())

    def lost(self) -> list[int]:
        """Return the indices of parameters whose gradients keep their direction in eager but not here.

        The cosine of two random vectors of `n` numbers is about `1 / sqrt(n)`.
        """
        found = []
        for place, size, sums in zip(self._places, self._sizes, self._sums.tolist()):
            direction = _direction(sums)
            is_clear = direction.eager >= MIN_COSINE + 4 / size**0.5
            if is_clear and not direction.candidate >= OF_ONE * direction.eager:
                found.append(place)
        return found


def _direction(sums: list[float]) -> Direction:
    exact, eager, candidate, eager_apart, candidate_apart = sums
    return Direction(
        _cosine(exact, eager, eager_apart),
        _cosine(exact, candidate, candidate_apart),
        (candidate / max(eager, 1e-30)) ** 0.5,
    )


def _cosine(one: float, other: float, apart: float) -> float:
    """Return the cosine between two vectors, from the squares of their lengths and of their distance."""
    product = (one * other) ** 0.5
    return round((one + other - apart) / (2 * product), 6) if product > 0 else 0.0
