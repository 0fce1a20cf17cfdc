"""What an error in a trial means: something against the tier, no memory, or the step's own to tell."""

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
from .trial import ChangedDuringTrial, Refused


@dataclass(frozen=True)
class TrialFailure:
    """Why a trial has ended; one that something only came in between is worth repeating."""

    reason: str
    may_repeat: bool = False


def explain_failure(error: Exception, tier: Tier) -> TrialFailure:
    """Say what an error has against a tier.

    >>> explain_failure(RecursionError("maximum recursion depth exceeded"), "compiled").reason
    'trying the compiled step failed: maximum recursion depth exceeded'
    """
    if isinstance(error, Refused):
        return TrialFailure(str(error), may_repeat=isinstance(error, ChangedDuringTrial))
    if isinstance(error, torch.OutOfMemoryError):
        return TrialFailure("there is no memory left to try a faster tier in")
    return TrialFailure(f"trying the {tier} step failed: {error_summary(error)}")


def comes_from_step(error: BaseException) -> bool:
    """Say whether an error came out of forward, backward or update, not of what a trial does around."""
    return _came_through(error, EagerRunner.run_without_update) or _came_through(error, StepBody.update)


def may_have_updated(error: BaseException) -> bool:
    """Say whether an error came out of an update; one that was rehearsed has been put back."""
    return _came_through(error, StepBody.update) and not _came_through(error, rehearse)


def _came_through(error: BaseException, function: Callable[..., Any]) -> bool:
    code = function.__code__
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))
