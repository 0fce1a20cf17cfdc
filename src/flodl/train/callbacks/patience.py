"""When a metric has stopped getting better: the one rule behind early stopping and a falling rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from flodl.core import TrainError
from flodl.core.integers import is_integer
from flodl.core.paths import suggestion

if TYPE_CHECKING:
    pass


Mode = Literal["min", "max"]


class Patience:
    """Count the epochs since the best value; better is by more than `tol`, and NaN never is.

    >>> patience = Patience("EarlyStopping", 2, "min", 0.0)
    >>> [patience.is_over(value) for value in [1.0, 0.5, 0.6, 0.55]]
    [False, False, False, True]
    """

    def __init__(self, who: str, epochs: int, mode: Mode, tol: float) -> None:
        if not is_integer(epochs, at_least=1):
            raise TrainError(f"{who}: patience={epochs!r}. Give a whole number of epochs from 1 up.")
        if mode not in ("min", "max"):
            raise TrainError(f"{who}: mode={mode!r}. Use 'min' or 'max'.")
        if not tol >= 0:
            raise TrainError(f"{who}: tol={tol!r}. Give a number from 0 up: what an improvement must exceed.")
        self.who, self.epochs, self.mode, self.tol = who, epochs, mode, tol
        self.begin()

    def begin(self) -> None:
        """Forget every value so far."""
        self.best: float | None = None
        self.waited = 0

    def is_over(self, value: float) -> bool:
        """Take the metric of one more epoch and say whether it has gone without a new best for too long."""
        sign = 1 if self.mode == "min" else -1
        is_first = self.best is None and not math.isnan(value)
        if is_first or (self.best is not None and (self.best - value) * sign > self.tol):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether there was no new best for so many epochs."""
        return self.waited >= self.epochs

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; one that was saved before there was a best to keep begins anew."""
        self.best, self.waited = state.get("best"), state.get("waited", 0)


def metric_of(metrics: Mapping[str, float], name: str, who: str) -> float:
    """Give a metric by name, or say which there are."""
    if name not in metrics:
        hint = suggestion(name, metrics, known_as="metrics")
        raise TrainError(f"{who} watches {name!r}, which this run does not have. {hint}")
    return float(metrics[name])
