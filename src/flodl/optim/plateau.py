"""A schedule that lowers the learning rate when a metric stops improving."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Literal, SupportsFloat

from flodl.core import ScheduleError, log
from flodl.core.best_values import improves

from ._arguments import check_integer, check_number, explained
from ._torch_habits import OF_PLATEAUS, TorchHabits

_SHARED = (
    "this PlateauScheduler gets the metrics of several TrainSteps, Trainers or bridges in turn, "
    "so each epoch counts several times. Create one PlateauScheduler for each optimizer. For one rate in all "
    "of them, pass the metric to observe() of one of them only."
)


@explained
class PlateauScheduler(TorchHabits):
    """Multiply the learning rate by `factor` after `patience` consecutive observations without a new best.

    Any improvement counts that is more than rounding (a millionth of the value); `min` is the lower bound,
    and mode="max" is for metrics where higher is better. `torch.optim.lr_scheduler.ReduceLROnPlateau` waits
    for one observation more than its patience; this schedule does not.

    >>> schedule = PlateauScheduler(0.1, patience=3, factor=0.5)
    >>> [schedule.observe(loss) for loss in (1.0, 1.1, 1.2, 1.3)]
    [0.1, 0.1, 0.1, 0.05]
    """

    _instead = OF_PLATEAUS

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
        check_number(
            name, "base", base, above=0, hint="Pass the learning rate to start from, for example 0.1."
        )
        hint = "It is the number of observations without improvement before a decay; 1 decays at the first."
        check_integer(name, "patience", patience, at_least=1, hint=hint)
        check_number(
            name, "factor", factor, above=0, below=1, hint="0.5 halves the learning rate at each decay."
        )
        hint = "Pass the lowest learning rate, no higher than base."
        check_number(name, "min", min, at_least=0, at_most=base, hint=hint)
        if mode not in ("min", "max"):
            raise ScheduleError(
                f"{name}: mode={mode!r}, expected 'min' or 'max'. "
                "Use 'min' for a loss and 'max' for a metric where higher is better."
            )
        self.base, self.patience, self.factor, self.min, self.mode = base, patience, factor, min, mode
        self._worst = math.inf if mode == "min" else -math.inf
        self.reset()

    def reset(self) -> None:
        """Forget all observations and return to the base learning rate."""
        self._lr = float(self.base)
        # What identifies the bridges that have passed metrics, in turn.
        self._turns: list[object] = []
        self.forget()

    def forget(self) -> None:
        """Forget all observations, but keep the current learning rate, as before a different metric."""
        self._best, self._wait = self._worst, 0
        self._first: float | None = None

    @property
    def has_observed(self) -> bool:
        """Whether there were observations, here or in the state that was loaded.

        >>> schedule = PlateauScheduler(0.1, patience=3, factor=0.5)
        >>> before = schedule.has_observed
        >>> _ = schedule.observe(1.0)
        >>> before, schedule.has_observed
        (False, True)
        """
        is_new = self._first is None and self._best == self._worst and self._wait == 0
        return not is_new or self._lr != self.base

    def observe(self, metric: SupportsFloat) -> float:
        """Take the next value of the metric, and return the new learning rate.

        NaN is never an improvement. Reading a tensor synchronizes with its device, so observe once per epoch,
        not per step.
        """
        value = _number(metric)
        self._first = value if self._first is None else self._first
        if improves(value, self._best, self.mode):
            self._best, self._wait = value, 0
            return self._lr
        self._wait += 1
        if self._wait >= self.patience:
            self._note_direction(value)
            self._lr, self._wait = max(self._lr * self.factor, self.min), 0
        return self._lr

    def take_turn(self, bridge: object) -> None:
        """Raise if bridges pass metrics in turn; one may continue after another one has ended.

        >>> schedule = PlateauScheduler(0.1, patience=3, factor=0.5)
        >>> for bridge in ("first", "second", "first"):
        ...     schedule.take_turn(bridge)
        """
        if self._turns and self._turns[-1] is bridge:
            return
        if len(self._turns) + 1 - len({*map(id, self._turns), id(bridge)}) > 1:
            raise ScheduleError(_SHARED)
        self._turns.append(bridge)

    def _note_direction(self, value: float) -> None:
        """Say that lower is better if a metric like an accuracy has only risen until the first decay."""
        has_only_risen = self._best == self._first and 0 <= self._best < value <= 1
        if self.mode == "min" and self._lr == self.base and has_only_risen:
            log.msg(
                "PlateauScheduler: the metric has not fallen below its first value, %g, and is %g now. Lower "
                "is better; for a metric such as an accuracy, write mode='max'.",
                self._best,
                value,
            )

    def lr(self, step: int | None = None) -> float:
        """Return the current learning rate; `step` is accepted as in any schedule, and ignored."""
        return self._lr

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers; `best` is None before the first improvement."""
        best = None if self._best == self._worst else self._best
        settings = {"base": self.base, "mode": self.mode}
        return {"lr": self._lr, "best": best, "wait": self._wait, **settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        The settings are those of this schedule: with another `base`, past decays apply to the new one,
        and with another `mode`, the best value is forgotten.
        """
        missing = [key for key in ("lr", "best", "wait") if key not in state]
        if missing:
            raise ScheduleError(
                f"PlateauScheduler: the state has no {', '.join(map(repr, missing))}, only {sorted(state)}. "
                "Load the result of PlateauScheduler.state_dict()."
            )
        try:
            best = self._worst if state["best"] is None else float(state["best"])
            lr, wait = float(state["lr"]), int(state["wait"])
            # States of older versions have no base.
            lr = max(lr * (self.base / float(state.get("base", self.base))), self.min)
        except (TypeError, ValueError, ZeroDivisionError):
            raise ScheduleError(
                f"PlateauScheduler: the state {dict(state)!r} contains something that is not a number. "
                "Load the result of PlateauScheduler.state_dict()."
            ) from None
        # The first observation is unknown.
        self._lr, self._best, self._wait, self._first = lr, best, wait, math.nan
        self._turns = []
        if state.get("mode", self.mode) != self.mode:
            self.forget()
            log.msg("PlateauScheduler: mode is now %r, so the best value so far is forgotten", self.mode)

    def __repr__(self) -> str:
        settings = f"{self.base}, patience={self.patience}, factor={self.factor}, min={self.min}"
        return f"PlateauScheduler({settings}, mode={self.mode!r}, lr={self._lr})"


def _number(metric: SupportsFloat) -> float:
    if not isinstance(metric, str):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(metric)
    raise ScheduleError(
        f"observe got {metric!r:.60}. Pass one number: the value of the metric in this epoch."
    )
