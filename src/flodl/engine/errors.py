"""The error of a step that cannot be captured."""

from __future__ import annotations

from flodl.core import StepError


class NotCapturable(StepError):
    """The region does something that cannot be recorded; the message names it, and the line."""
