"""Report long pauses of Python's garbage collector."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from ..events import Event

_MIN_DURATION_S = 0.005


class GcPauses:
    """Emit a "gc" event for each collection that takes at least `min_duration_s` seconds."""

    def __init__(
        self, emit: Callable[[Event], object], *, min_duration_s: float = _MIN_DURATION_S, rank: int = 0
    ) -> None:
        self._emit = emit
        self._min_duration_s = min_duration_s
        self._rank = rank
        self._started_s = 0.0

    def start(self) -> None:
        """Register the callback with the garbage collector."""
        gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """Remove the callback."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._started_s = time.perf_counter()
            return
        duration_s = time.perf_counter() - self._started_s
        if duration_s >= self._min_duration_s:
            data = {"duration_s": duration_s, "generation": info.get("generation", 0)}
            self._emit(Event("gc", data, rank=self._rank))
