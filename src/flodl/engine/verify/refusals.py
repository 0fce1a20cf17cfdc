"""Why a candidate may not replace eager."""

from __future__ import annotations


class Refused(Exception):
    """The candidate may not replace eager; the message says why."""


class WaitsForDevice(Refused):
    """The eager step waits for the device, which does not rule out a compiled one."""


class ChangedDuringTrial(Refused):
    """Something changed while the candidate was tried, so the trial may be repeated."""
