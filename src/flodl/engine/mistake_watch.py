"""Looks for mistakes while a step trains, rarely enough to cost nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flodl.optim import ScheduleBridge

from .mistakes.empty_batch import EMPTY_BATCH_ADVICE, empty_batch
from .mistakes.first_call import (
    check_continued,
    check_mode,
    check_rate,
    check_restarted,
    check_schedulers,
)
from .mistakes.parameters import TrainedParameters, next_check
from .mistakes.skipped_updates import SkippedUpdates
from .modes import has_chosen_modes
from .program.program import StepBody
from .program.progress import Count
from .program.update import parameters_of
from .report import Cause, Journal


class MistakeWatch:
    """The checks of one step, and what they remember.

    A caller that itself reports skipped updates and modules in evaluation mode sets `is_reported_elsewhere`.
    """

    def __init__(self, body: StepBody, bridge: ScheduleBridge | None, journal: Journal) -> None:
        self._body, self._bridge, self._journal = body, bridge, journal
        self.is_mode_checked = False
        self._is_reported_elsewhere = False
        self.trained = TrainedParameters(body.model, body.parameters)
        self.skips = SkippedUpdates(with_scaler=body.scaler is not None)

    @property
    def is_reported_elsewhere(self) -> bool:
        """Whether the caller reports skipped updates, and that only parts of the model are trained."""
        return self._is_reported_elsewhere

    @is_reported_elsewhere.setter
    def is_reported_elsewhere(self, is_reported: bool) -> None:
        self._is_reported_elsewhere = self.skips.is_quiet = is_reported

    def look(self, count: Count) -> None:
        """Look for mistakes: at first, at a new epoch, every few hundred steps, after a skipped update."""
        body, journal = self._body, self._journal
        body.updater.calls.check_at = count.steps_before + next_check(count.own_steps)
        if not body.model.training and not self.is_mode_checked:
            self.is_mode_checked = True
            if not (self.is_reported_elsewhere and has_chosen_modes(body.model)):
                check_mode(body.model, journal, count.steps, was_training=count.own_steps > 0)
        if count.is_loaded:
            count.is_loaded = False
            check_continued(body.optimizer, count.updates, journal, count.steps)
        body.find_others()
        if added := self.trained.check(body.model, parameters_of(body.optimizer)):
            journal.warn(count.steps, "parameters", Cause.PROBABLE_MISTAKE, added)
        if self._bridge is not None:
            check_schedulers(body.optimizer, journal, count.steps)
            if not self.is_reported_elsewhere:
                check_rate(self._bridge, journal, count.steps)
            is_new = not count.steps and not count.is_trial
            if is_new and not self._bridge.current_step:
                check_restarted(body.optimizer, journal)
        self.look_for_skipped(count)

    def look_for_skipped(self, count: Count, *, wait: bool = False) -> None:
        """Warn if updates were skipped, as far as known; with `wait`, as of now."""
        num_skipped = self._body.updater.num_skipped
        self.skips.check(num_skipped, count.updates, self._journal, count.steps, wait=wait)

    def look_for_untrained(self, count: Count) -> None:
        """Warn about parameters that received a gradient but are in no optimizer."""
        body = self._body
        if untrained := self.trained.untrained(body.model, parameters_of(body.optimizer)):
            self._journal.warn(count.steps, "parameters", Cause.PROBABLE_MISTAKE, untrained)

    def look_for_empty_batch(self, batch: tuple[Any, ...], loss: Tensor, count: Count) -> None:
        """Warn about a batch without samples whose loss is not finite; on ranks it has no weight."""
        body = self._body
        if body.reduction is not None or bool(loss.isfinite()):
            return
        told = empty_batch(body.step_fn, batch)
        reason = f"{told}, and its loss is not finite, so the update is skipped. {EMPTY_BATCH_ADVICE}"
        report = self._journal.add if self.is_reported_elsewhere else self._journal.warn
        report(count.steps, "empty", Cause.PROBABLE_MISTAKE, reason)
