"""Python's garbage collector stops everything for a moment; moments that matter are told."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from .events import Event

_LEAST_S = 0.005


class Pauses:
    """Emit a "gc" event for each collection that took longer than `least_s`."""

    def __init__(self, emit: Callable[[Event], object], *, least_s: float = _LEAST_S, rank: int = 0) -> None:
        self._emit = emit
        self._least_s = least_s
        self._rank = rank
        self._began_s = 0.0

    def start(self) -> None:
        """Begin to listen to the collector."""
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """Listen no more."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
            return
        duration_s = time.perf_counter() - self._began_s
        if duration_s >= self._least_s:
            data = {"duration_s": duration_s, "generation": info.get("generation", 0)}
            self._emit(Event("gc", data, rank=self._rank))
