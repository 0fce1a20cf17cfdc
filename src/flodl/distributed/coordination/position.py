"""Where a rank is on the learning rate curve, measured in batches of all ranks together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """Committed batches, plus own steps times the batches that all ranks train per own step.

    The curve is the same for any number of ranks, and does not jump when ranks meet. Only committed batches
    move its start; where lost work makes that fall short, the position waits at `floor`.

    >>> position = Position(start=100.0, per_step=4.0)
    >>> [position.at(steps) for steps in (0, 1, 10)]
    [100.0, 104.0, 140.0]
    >>> position.next(start=130.0, per_step=4.0, steps=10).at(0)
    140.0
    """

    start: float
    per_step: float
    floor: float = 0.0

    def at(self, steps: int) -> float:
        return max(self.floor, self.start + steps * self.per_step)

    def next(self, *, start: float, per_step: float, steps: int) -> Position:
        """Return the position of the next plan, after `steps` steps of this one."""
        return Position(start, per_step, self.at(steps))
