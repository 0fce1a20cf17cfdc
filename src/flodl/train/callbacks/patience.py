"""Patience: the rule that decides when a metric has stopped improving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from flodl.core import TrainError
from flodl.core.best_values import improves
from flodl.core.integers import as_integer, as_number, is_integer, is_number
from flodl.core.metric_modes import Mode
from flodl.core.paths import nearest, suggestion

from ..evaluation import names

# Whether the hooks of a run add a metric: never, maybe, or certainly, because their code has its name.
Added = Literal["never", "maybe", "named"]


class Patience:
    """Count the epochs since the best value; an improvement exceeds `tol` and rounding, and NaN is never one.

    >>> patience = Patience("EarlyStopping", 2, "min", 0.0)
    >>> [patience.is_over(value) for value in [1.0, 0.5, 0.6, 0.55]]
    [False, False, False, True]
    """

    def __init__(self, who: str, epochs: int, mode: Mode, tol: float) -> None:
        epochs, tol = as_integer(epochs), as_number(tol)
        if not is_integer(epochs, at_least=1):
            raise TrainError(f"{who}: patience={epochs!r}. Use an integer of at least 1.")
        if mode not in ("min", "max"):
            raise TrainError(f"{who}: mode={mode!r}. Use 'min' or 'max'.")
        if not is_number(tol) or not tol >= 0:
            raise TrainError(
                f"{who}: tol={tol!r}. Use a number of at least 0; an improvement must exceed it."
            )
        self.who, self.epochs, self.mode, self.tol = who, epochs, mode, tol
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.best: float | None = None
        self.waited = 0

    def is_over(self, value: float) -> bool:
        """Add the metric of an epoch, and return whether there was no new best for too long."""
        is_first = self.best is None and not math.isnan(value)
        if is_first or (self.best is not None and improves(value, self.best, self.mode, tol=self.tol)):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.is_exhausted

    @property
    def is_exhausted(self) -> bool:
        """Whether there was no new best for `epochs` epochs."""
        return self.waited >= self.epochs

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; one without a best value starts from scratch."""
        best = state.get("best") if isinstance(state, Mapping) else state
        waited = state.get("waited", 0) if isinstance(state, Mapping) else None
        if not (best is None or type(best) in (int, float)) or not is_integer(waited, at_least=0):
            raise TrainError(
                f"{self.who}: the state {state!r:.80} does not have a number 'best' and a count 'waited'. "
                "Load the result of state_dict()."
            )
        self.best, self.waited = None if best is None else float(best), waited


def is_evaluated(name: str) -> bool:
    """Return whether a metric of an epoch comes from its evaluation."""
    return name.startswith("eval_")


def is_awaited(name: str, known: Iterable[str], added: Added) -> bool:
    """Return whether a hook may add a metric in a later epoch: its code names it, or no metric is similar.

    >>> is_awaited("fid", ["loss", "lr"], "maybe"), is_awaited("los", ["loss", "lr"], "maybe")
    (True, False)
    """
    return added == "named" or (added == "maybe" and not nearest(name, list(known)))


def metric_of(metrics: Mapping[str, float], name: str, who: str) -> float:
    """Return a metric by name, or raise an error that lists the existing names."""
    if name not in metrics:
        hint = suggestion(name, metrics, known_as="metrics")
        raise TrainError(f"{who} watches {name!r}, which this run does not have. {hint}")
    return float(names.as_number(name, metrics[name]))
