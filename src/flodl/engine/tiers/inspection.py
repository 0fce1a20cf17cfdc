"""Inspection of the model every few hundred steps, for changes that neither a replay nor a guard sees."""

from __future__ import annotations

from ..capture.runner import RecordedRunner, Runner
from ..guards.thorough import ThoroughGuard
from ..program.program import StepBody

# An inspection takes up to a millisecond. It is due after this many steps or this much time.
LOOK_EVERY = 512
LOOK_EVERY_S = 0.5


class Inspection:
    """The thorough guard of the current tier, and when it is due."""

    def __init__(self, body: StepBody) -> None:
        self._body = body
        self._guard: ThoroughGuard | None = None
        self._last_step = 0

    @property
    def is_unchanged(self) -> bool:
        """Whether there is a guard and nothing has changed."""
        return self._guard is not None and self._guard.what_changed() is None

    def start(self, runner: Runner, step: int) -> None:
        """Remember the model as it is now, for a runner that was just promoted."""
        updates = isinstance(runner, RecordedRunner) and runner.records_update
        self._last_step = step
        self._guard = ThoroughGuard(
            self._body.model,
            with_tensors=self._body.device.type == "cuda",
            optimizer=self._body.optimizer if updates else None,
        )

    def is_due(self, step: int, window_s: float | None) -> bool:
        """Return whether to inspect before this step, and count it as inspected if so."""
        # A loaded state may have gone back to an earlier step.
        if self._guard is None or 0 <= step - self._last_step < self._interval(window_s):
            return False
        self._last_step = step
        return True

    def steps_left(self, step: int, window_s: float | None) -> int:
        """Return how many steps may run before the next inspection."""
        return self._interval(window_s) - (step - self._last_step)

    def what_changed(self) -> str | None:
        """Return what changed since `start`, or None."""
        assert self._guard is not None
        changed = self._guard.what_changed()
        return changed and f"{changed} (noticed within {LOOK_EVERY} steps)"

    def _interval(self, window_s: float | None) -> int:
        if not window_s:
            return LOOK_EVERY
        return max(1, min(LOOK_EVERY, int(LOOK_EVERY_S * self._body.settings.accumulate / window_s)))
