"""The base class of trackers: a run that is opened by the first event and ends once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any

from flodl.core import SetupError

from ..events import Event
from .sink import Numbers, numbers_of, settings_of


class Tracker(ABC):
    """A sink for one run of rank 0; it is opened by the first event, on the sink's thread."""

    _started_s: float | None = None
    _has_ended = False

    def write(self, event: Event) -> None:
        """Write one event; events after the end of the run are ignored."""
        if event.rank != 0 or self._has_ended:
            return
        if self._started_s is None:
            settings = settings_of(event) if event.kind == "run_start" else {}
            self._open(str(event.data.get("name") or ""), settings, event.time_s)
            self._started_s = event.time_s
        numbers = numbers_of(event, started_s=self._started_s)
        if numbers is not None and numbers.values:
            self._log(numbers, event.time_s)
        elif event.kind == "config":
            self._configure(settings_of(event))
        elif event.kind == "alert":
            self._warn(str(event.data.get("message", "")), str(event.data.get("level", "warning")))
        elif event.kind == "run_end":
            self._finish(str(event.data.get("status", "finished")))

    def close(self) -> None:
        """End the run if it has not ended."""
        if self._started_s is not None and not self._has_ended:
            self._finish("stopped")

    def _finish(self, status: str) -> None:
        self._has_ended = True
        self._end(status)

    @abstractmethod
    def _open(self, name: str, settings: dict[str, Any], time_s: float) -> None:
        """Start the run."""

    @abstractmethod
    def _log(self, numbers: Numbers, time_s: float) -> None:
        """Write the numbers of one event."""

    @abstractmethod
    def _end(self, status: str) -> None:
        """End the run as finished, stopped or failed."""

    def _configure(self, settings: dict[str, Any]) -> None:  # noqa: B027
        """Add settings that became known after the start, if the tracker supports that."""

    def _warn(self, message: str, level: str) -> None:  # noqa: B027
        """Forward an alert, if the tracker supports alerts."""


def require(module: str, *, install: str) -> None:
    """Raise if the package of a tracker is not installed."""
    if find_spec(module) is None:
        raise SetupError(
            f"the package {module!r} is not installed. Install it (pip install {install}), or use "
            "TensorBoard, Csv or JsonLines, which need no package."
        )
