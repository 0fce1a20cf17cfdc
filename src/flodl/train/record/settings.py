"""The settings of a trainer as plain data: part of the record, and compared on resume."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from flodl.core.plain import describe
from flodl.optim import PlateauScheduler

from ..session import Session


def config_of(session: Session) -> dict[str, Any]:
    """Return the settings that a resumed run is compared by."""
    loader, settings = session.loader, asdict(session.settings)
    return {
        "batch_size": None if loader is None else loader.batch_size,
        "device": str(session.device),
        "optimizer": type(session.optimizer).__name__,
        "schedule": describe_schedule(session.schedule),
        **asdict(session.train_step.settings),
        **settings,
        "seed": settings["seed"] if loader is None else loader.seed,
    }


def describe_schedule(schedule: Any) -> str | None:
    """Return a schedule with its settings; a function with a hash of its code."""
    if schedule is None:
        return None
    if isinstance(schedule, PlateauScheduler):
        return re.sub(r", lr=[^,)]*\)$", ")", repr(schedule))  # the current rate is not a setting
    return describe(schedule)
