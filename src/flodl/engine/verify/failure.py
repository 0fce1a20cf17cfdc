"""What an error during a trial means: a reason against the tier, too little memory, or a bug in the step."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.recording import rehearse
from ..device.error_text import error_summary
from ..program.program import StepBody
from ..program.runner import EagerRunner
from ..settings import Tier
from .refusals import ChangedDuringTrial, Refused


@dataclass(frozen=True)
class TrialFailure:
    """Why a trial ended; `may_repeat` if only a change in between ended it."""

    reason: str
    may_repeat: bool = False


def explain_failure(error: Exception, tier: Tier) -> TrialFailure:
    """Return why an error rules out a tier.

    >>> explain_failure(RecursionError("maximum recursion depth exceeded"), "compiled").reason
    'trying the compiled step failed: maximum recursion depth exceeded'
    """
    if isinstance(error, Refused):
        return TrialFailure(str(error), may_repeat=isinstance(error, ChangedDuringTrial))
    if isinstance(error, torch.OutOfMemoryError):
        return TrialFailure("there is no memory left to try a faster tier in")
    return TrialFailure(f"trying the {tier} step failed: {error_summary(error)}")


def comes_from_step(error: BaseException) -> bool:
    """Return whether an error was raised in forward, backward or update, not by the trial around them."""
    return _passed_through(error, EagerRunner.run_without_update) or _passed_through(error, StepBody.update)


def may_have_updated(error: BaseException) -> bool:
    """Return whether an error was raised in a real update; a rehearsed update has been undone."""
    return _passed_through(error, StepBody.update) and not _passed_through(error, rehearse)


def _passed_through(error: BaseException, function: Callable[..., Any]) -> bool:
    code = function.__code__
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))
