"""The anchor: how many batches the slowest rank trains in a window. It grows to pay for the reduction."""

from __future__ import annotations

import math
from typing import Any

from .guards import CALM, Verdict
from .settings import CadenceSettings

STABLE_AFTER, MATURE_AFTER = 5, 20
# Stable verdicts in a row after which windows may grow again.
RELEASE_AFTER = 5
MAX_GROWTH = 2.0


class Anchor:
    """Grows only with a stable verdict, at most by a factor of 2 per window; shrinks only on a verdict.

    >>> anchor = Anchor(CadenceSettings(anchor=10))
    >>> stable = Verdict("stable", "")
    >>> for _ in range(2):
    ...     reason = anchor.tune(slow_ms=10.0, reduce_ms=100.0, fill_ms=0.0, verdict=stable, capped=False)
    >>> anchor.batches, reason
    (20, 'the anchor grows from 10 to 20: reducing takes 50.0% of a window (target 5.0%)')
    """

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self.batches = settings.anchor
        self.num_windows = 0
        self._num_stable = 0
        self._latched = False

    @property
    def phase(self) -> str:
        """`probe`, `warmup`, `stable` or `mature`, by the number of measured windows."""
        if self.num_windows == 0:
            return "probe"
        if self.num_windows < STABLE_AFTER:
            return "warmup"
        return "stable" if self.num_windows < MATURE_AFTER else "mature"

    def tune(
        self, *, slow_ms: float, reduce_ms: float, fill_ms: float, verdict: Verdict, capped: bool
    ) -> str | None:
        """Apply a verdict and what reducing cost; return why the anchor changed, if it did.

        `capped` means that the window is limited by something else, so that growth would not show.
        """
        self.num_windows += 1
        if verdict.kind != "stable":
            self._num_stable, self._latched = 0, True
            return self._shrink(verdict) if verdict.kind == "nudge" else None
        self._num_stable += 1
        if self._latched and self._num_stable >= RELEASE_AFTER:
            self._latched = False
        if self._latched or capped or not self._settings.growth:
            return None
        target = self._settings.overhead_target * (CALM if verdict.calm else 1.0)
        return self._grow(slow_ms, reduce_ms + fill_ms, target)

    def _shrink(self, verdict: Verdict) -> str | None:
        if not math.isfinite(verdict.factor):
            return None
        before = self.batches
        self.batches = min(before, max(1, math.ceil(before * min(1.0, max(0.1, verdict.factor)))))
        if self.batches == before:
            return None
        return f"the anchor shrinks from {before} to {self.batches}: {verdict.reason}"

    def _grow(self, slow_ms: float, cost_ms: float, target: float) -> str | None:
        before = self.batches
        if not cost_ms > 0.0 or not slow_ms > 0.0 or target <= 0.0:
            return None
        overhead = cost_ms / (before * slow_ms + cost_ms)
        # The first measurements are noisy: only a large overhead, seen in the second window, counts.
        needed = target if self.num_windows >= STABLE_AFTER else 2 * target
        if overhead <= needed or self.num_windows < 2:
            return None
        proposed = math.ceil(before * min(overhead / target, MAX_GROWTH))
        self.batches = min(proposed, self._settings.max_anchor)
        if self.batches == before:
            return None
        return (
            f"the anchor grows from {before} to {self.batches}: reducing takes {overhead:.1%} of a window "
            f"(target {target:.1%})"
        )

    def state(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "num_windows": self.num_windows,
            "num_stable": self._num_stable,
            "latched": self._latched,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.batches, self.num_windows = state["batches"], state["num_windows"]
        self._num_stable, self._latched = state["num_stable"], state["latched"]
