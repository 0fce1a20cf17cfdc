"""What an error during a trial means: a reason against the tier, too little memory, or a bug in the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..device.error_text import error_summary
from ..settings import Tier
from .refusals import ChangedDuringTrial, Refused, WaitsForDevice


class StepFailed(Exception):
    """Wraps an error of forward, backward or update, as opposed to one of the trial around them."""

    def __init__(self, error: Exception, *, may_have_updated: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_have_updated = may_have_updated


@contextmanager
def step_errors(*, updating: bool = False) -> Iterator[None]:
    """Wrap errors of the step itself in `StepFailed`.

    >>> with step_errors():
    ...     raise ValueError("expected a batch of images")
    Traceback (most recent call last):
    flodl.engine.verify.failure.StepFailed: expected a batch of images
    """
    try:
        yield
    except Exception as error:
        raise StepFailed(error, may_have_updated=updating) from error


@dataclass(frozen=True)
class TrialFailure:
    """Why a trial ended; `may_repeat` if only a change in between ended it.

    `is_wait` if the eager step waits for the device.
    """

    reason: str
    may_repeat: bool = False
    no_memory: bool = False
    is_wait: bool = False


def explain_failure(error: Exception, tier: Tier) -> TrialFailure:
    """Return why an error rules out a tier.

    >>> explain_failure(RecursionError("maximum recursion depth exceeded"), "compiled").reason
    'trying the compiled step failed: maximum recursion depth exceeded'
    """
    if isinstance(error, StepFailed):
        error = error.error
    if isinstance(error, Refused):
        may_repeat, is_wait = isinstance(error, ChangedDuringTrial), isinstance(error, WaitsForDevice)
        return TrialFailure(str(error), may_repeat=may_repeat, is_wait=is_wait)
    if isinstance(error, torch.OutOfMemoryError):
        return TrialFailure("there is not enough memory to try a faster tier", no_memory=True)
    return TrialFailure(f"trying the {tier} step failed: {error_summary(error)}")
