"""Why a step cannot be captured."""

from __future__ import annotations

from flodl.core import StepError


class NotCapturable(StepError):
    """The region did something that a recording cannot hold; says what, and on which line."""
