"""The settings of a trainer as plain data: part of the record, and compared on resume."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flodl.core.contents.objects import class_label
from flodl.monitor.run_settings.optimizer import describe_schedule

from ..session import Session

# The settings that a run on one device does not have.
OF_SEVERAL_DEVICES = ("devices", "policy", "backend", "wire", "outer")


def config_of(session: Session) -> dict[str, Any]:
    """Return the settings that a resumed run is compared by."""
    loader, settings = session.loader, asdict(session.settings)
    if not session.settings.devices:
        for name in OF_SEVERAL_DEVICES:
            del settings[name]
    return {
        "batch_size": None if loader is None else loader.batch_size,
        "device": str(session.device),
        "optimizer": class_label(type(session.optimizer)),
        "schedule": describe_schedule(session.schedule),
        **asdict(session.train_step.settings),
        **settings,
        "seed": loader.seed if loader is not None and settings["seed"] is None else settings["seed"],
    }
