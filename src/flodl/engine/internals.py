"""Access to the parts of a `TrainStep`, for the tests and benchmarks of flodl; not part of the public API."""

from __future__ import annotations

from .program.program import StepBody
from .step import TrainStep
from .tiers.controller import TierController


def body_of(step: TrainStep) -> StepBody:
    """Return what the step runs: model, optimizer, updater, running means."""
    return step._body


def controller_of(step: TrainStep) -> TierController:
    """Return what decides which tier runs the step."""
    return step._controller
