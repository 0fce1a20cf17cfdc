"""A schedule that watches a metric and lowers the learning rate when the metric stops improving."""

from __future__ import annotations

import math
from typing import Any, Literal, SupportsFloat

from flodl.core import ScheduleError

from ._arguments import number, whole


class PlateauScheduler:
    """Multiply the learning rate by `factor` after `patience` observations in a row without a new best.

    Any improvement counts, however small; `min` is the floor, and mode="max" is for metrics where
    higher is better. Where `torch.optim.lr_scheduler.ReduceLROnPlateau` waits for one observation
    more than its patience, this one acts at the patience.

    >>> schedule = PlateauScheduler(0.1, patience=3, factor=0.5)
    >>> [schedule.observe(loss) for loss in (1.0, 1.1, 1.2, 1.3)]
    [0.1, 0.1, 0.1, 0.05]
    """

    def __init__(
        self,
        base: float,
        patience: int,
        factor: float,
        min: float = 0.0,
        *,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        name = "PlateauScheduler"
        number(name, "base", base, above=0, hint="Give the learning rate to start from, for example 0.1.")
        hint = "It counts the observations without improvement before a fall; 1 falls at the first."
        whole(name, "patience", patience, at_least=1, hint=hint)
        number(name, "factor", factor, above=0, below=1, hint="0.5 halves the learning rate at each fall.")
        hint = "Give the learning rate below which it never falls, no higher than base."
        number(name, "min", min, at_least=0, at_most=base, hint=hint)
        if mode not in ("min", "max"):
            raise ScheduleError(
                f"{name}: mode={mode!r}, expected 'min' or 'max'. "
                "Use 'min' for a loss and 'max' for a metric where higher is better."
            )
        self.base, self.patience, self.factor, self.min, self.mode = base, patience, factor, min, mode
        self._worst = math.inf if mode == "min" else -math.inf
        self.begin()

    def begin(self) -> None:
        """Forget every value so far, and go back to the learning rate to start from."""
        self._lr, self._best, self._wait = float(self.base), self._worst, 0

    def observe(self, metric: SupportsFloat) -> float:
        """Take the next value of the metric, and give the learning rate that follows from it.

        NaN is never an improvement. A tensor is read to the host, so observe once per epoch, not per step.
        """
        value = float(metric)
        better = value < self._best if self.mode == "min" else value > self._best
        if better:
            self._best, self._wait = value, 0
            return self._lr
        self._wait += 1
        if self._wait >= self.patience:
            self._lr, self._wait = max(self._lr * self.factor, self.min), 0
        return self._lr

    def lr(self, step: int | None = None) -> float:
        """Give the current learning rate; the step is accepted, as in any schedule, and not used."""
        return self._lr

    def state_dict(self) -> dict[str, Any]:
        """Give what has been observed as plain numbers; `best` is None before the first improvement."""
        best = None if self._best == self._worst else self._best
        return {"lr": self._lr, "best": best, "wait": self._wait}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        missing = [key for key in ("lr", "best", "wait") if key not in state]
        if missing:
            raise ScheduleError(
                f"PlateauScheduler: the state has no {', '.join(map(repr, missing))}, only {sorted(state)}. "
                "Load what PlateauScheduler.state_dict() gave."
            )
        try:
            best = self._worst if state["best"] is None else float(state["best"])
            lr, wait = float(state["lr"]), int(state["wait"])
        except (TypeError, ValueError):
            raise ScheduleError(
                f"PlateauScheduler: the state {dict(state)!r} holds something that is not a number. "
                "Load what PlateauScheduler.state_dict() gave."
            ) from None
        self._lr, self._best, self._wait = lr, best, wait

    def __repr__(self) -> str:
        settings = f"{self.base}, patience={self.patience}, factor={self.factor}, min={self.min}"
        return f"PlateauScheduler({settings}, mode={self.mode!r}, lr={self._lr})"
