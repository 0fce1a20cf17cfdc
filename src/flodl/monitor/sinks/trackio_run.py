"""Write a run to Trackio's local store."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flodl.core.usage.calls import MonitorCallError, explain_creation

from .sink import Numbers
from .tracker import Tracker, require


@explain_creation(MonitorCallError, example="Write Trackio('my-project').")
class Trackio(Tracker):
    """Write a Trackio run; view it with `trackio show`."""

    def __init__(self, project: str = "flodl", *, name: str = "") -> None:
        require("trackio", install="trackio")
        self._project = project
        self._name = name

    def _open(self, name: str, settings: dict[str, Any], time_s: float) -> None:
        self._run: Any = import_module("trackio").init(
            project=self._project,
            name=self._name or name or None,
            config=settings,
            embed=False,
            # The events already contain hardware readings.
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _configure(self, settings: dict[str, Any]) -> None:
        if isinstance(getattr(self._run, "config", None), dict):
            self._run.config.update(settings)

    def _log(self, numbers: Numbers, time_s: float) -> None:
        self._run.log({**numbers.values, f"{numbers.axis}/number": numbers.position})

    def _end(self, status: str) -> None:
        self._run.finish()
