"""Guards watch how far the replicas drift apart, and decide whether windows may grow."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flodl.core import DistributedError

Kind = Literal["stable", "suppress", "nudge"]
# Below this share of the allowed divergence, reducing may take only this share of its target: windows are 2.5
# times as long. The divergence grows at most with their length, so it stays allowed.
CALM = 0.4


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and its reason: `stable`, `suppress` (no growth) or `nudge` (shrink by `factor`).

    `calm` means that the divergence would be allowed in longer windows, too.
    """

    kind: Kind
    reason: str
    factor: float = 1.0
    calm: bool = False


STABLE = Verdict("stable", "the divergence of the replicas is low")
_CALM = Verdict("stable", "the divergence of the replicas is very low", calm=True)
_NOT_MEASURED = Verdict("suppress", "the divergence was not measured, so windows do not grow")


class Guard(ABC):
    """Decides after each window, from the divergence max ‖replica − mean‖ / ‖mean‖ over the ranks."""

    name: ClassVar[str]

    @abstractmethod
    def observe(self, divergence: float | None, *, steps: int) -> Verdict:
        """Return the verdict on a window; `steps` is the largest number of batches of any rank in it."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from `state()`."""


class NoGuard(Guard):
    """Windows may always grow.

    >>> NoGuard().observe(None, steps=10).kind
    'stable'
    """

    name = "none"

    def observe(self, divergence: float | None, *, steps: int) -> Verdict:
        return Verdict("stable", "there is no guard", calm=True)


class LevelGuard(Guard):
    """Suppresses growth if the divergence rises three times in a row and is above a threshold.

    Far below the threshold, windows may grow further.

    >>> guard = LevelGuard(threshold=0.05)
    >>> [guard.observe(each, steps=10).kind for each in (0.02, 0.03, 0.04, 0.06, 0.05)]
    ['stable', 'stable', 'stable', 'suppress', 'stable']
    >>> [guard.observe(each, steps=10).calm for each in (0.02, 0.03)]
    [True, False]
    """

    name = "level"

    def __init__(self, threshold: float = 0.05) -> None:
        if not 0.0 < threshold < math.inf:
            raise DistributedError(f"expected a positive number, got {threshold!r}.", path="threshold")
        self._threshold = threshold
        self._last: list[float] = []

    def observe(self, divergence: float | None, *, steps: int) -> Verdict:
        if divergence is None or not math.isfinite(divergence):
            return _NOT_MEASURED
        last = self._last = [*self._last[-3:], divergence]
        rises = len(last) == 4 and last[0] < last[1] < last[2] < last[3]
        if rises and divergence > self._threshold:
            return Verdict(
                "suppress",
                f"the divergence rose three times in a row, to {divergence:.3g} "
                f"(threshold {self._threshold:g})",
            )
        return _CALM if divergence <= CALM * self._threshold else STABLE

    def state(self) -> dict[str, Any]:
        return {"last": self._last}

    def restore(self, state: dict[str, Any]) -> None:
        self._last = list(state["last"])


class GrowthGuard(Guard):
    """Watches the rate at which the divergence grows per batch: λ = ln(D / D of the last window) / steps.

    A smoothed rate above 1e-3 three times in a row suppresses growth; above 1e-2 three times in a row, the
    window is halved.

    >>> guard = GrowthGuard()
    >>> [guard.observe(0.01 * 2**each, steps=10).kind for each in range(5)]
    ['stable', 'stable', 'stable', 'nudge', 'nudge']
    """

    name = "growth"
    SUPPRESS, SHRINK, FLOOR, DECAY = 1e-3, 1e-2, 1e-8, 0.9

    def __init__(self) -> None:
        self._last = 0.0
        self._mean = 0.0
        self._num = 0
        self._above = [0, 0]

    def observe(self, divergence: float | None, *, steps: int) -> Verdict:
        if divergence is None or not math.isfinite(divergence) or steps < 1:
            return _NOT_MEASURED
        now = max(divergence, self.FLOOR)
        if not self._last:
            self._last = now
            return STABLE
        rate = math.log(now / self._last) / steps
        self._last = now
        self._num += 1
        self._mean = self.DECAY * self._mean + (1 - self.DECAY) * rate
        smooth = self._mean / (1 - self.DECAY**self._num)
        for index, limit in enumerate((self.SUPPRESS, self.SHRINK)):
            self._above[index] = self._above[index] + 1 if smooth > limit else 0
        words = f"the divergence grew by {smooth:.2g} per batch three times in a row"
        if self._above[1] >= 3:
            return Verdict("nudge", f"{words} (limit {self.SHRINK:g})", 0.5)
        if self._above[0] >= 3:
            return Verdict("suppress", f"{words} (limit {self.SUPPRESS:g})")
        return STABLE

    def state(self) -> dict[str, Any]:
        return {"last": self._last, "mean": self._mean, "num": self._num, "above": self._above}

    def restore(self, state: dict[str, Any]) -> None:
        self._last, self._mean, self._num = state["last"], state["mean"], state["num"]
        self._above = list(state["above"])


_GUARDS: dict[str, type[Guard]] = {each.name: each for each in (NoGuard, LevelGuard, GrowthGuard)}


def make_guard(name: str) -> Guard:
    """Return a new guard by its name: 'none', 'level' or 'growth'.

    >>> make_guard("level").name
    'level'
    """
    if name not in _GUARDS:
        names = ", ".join(map(repr, _GUARDS))
        raise DistributedError(f"there is no guard {name!r}. Use one of {names}.", path="guard")
    return _GUARDS[name]()
