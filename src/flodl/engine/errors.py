"""Errors of a step that cannot be captured, or whose effects cannot be undone."""

from __future__ import annotations

from flodl.core import StepError


class NotCapturable(StepError):
    """The region does something that cannot be recorded; the message names it, and the line."""


class HostSync(NotCapturable):
    """The region waits for the device; the message names the line."""


class NotRestorable(StepError):
    """The step may change something that cannot be restored; the message names it."""


class NoGradient(StepError):
    """No parameter of the optimizer received a gradient."""


class NoLoss(StepError):
    """The step function returned None in place of a loss."""


class StepCallError(StepError, TypeError):
    """The step function cannot be called with the batch; a TypeError, as in plain Python."""


class UpdateError(StepError, RuntimeError):
    """The optimizer raised an error of torch in an update; the message explains it."""


class StepFunctionError(StepError, RuntimeError):
    """The step function or its backward raised an error that the message explains."""


class StepAttributeError(StepError, AttributeError):
    """A TrainStep does not have this attribute, or it cannot be assigned."""
