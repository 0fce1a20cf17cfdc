"""The configuration of a run as plain data: written to config.json and compared on resume."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from ..session import Session


def config_of(session: Session) -> dict[str, Any]:
    """Return the settings that a resumed run is compared by."""
    loader, schedule = session.loader, session.schedule
    return {
        "batch_size": None if loader is None else loader.batch_size,
        "device": str(session.device),
        "optimizer": type(session.optimizer).__name__,
        "schedule": None if schedule is None else without_addresses(repr(schedule)),
        **asdict(session.train_step.settings),
        **asdict(session.settings),
    }


def without_addresses(text: str) -> str:
    """Remove memory addresses, which differ in every process.

    >>> without_addresses("<function rate at 0x7f21491dd940>")
    '<function rate>'
    """
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)
