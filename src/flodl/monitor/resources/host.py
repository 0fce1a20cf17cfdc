"""Processor and memory of the host, and this process's part of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Host:
    """Read processor and memory; where psutil is missing, there is nothing to read.

    Percentages are means since the previous reading, so the first reading has none. The process may
    pass 100: it counts every core that it keeps busy.
    """

    def __init__(self) -> None:
        self._primed = False
        self._psutil: Any = None
        try:
            self._psutil = import_module("psutil")
        except ImportError:
            return
        self._process = self._psutil.Process()

    def read(self) -> dict[str, Any]:
        """Give what is known as plain data."""
        if self._psutil is None:
            return {}
        readings: dict[str, Any] = {}
        try:
            total, own = self._psutil.cpu_percent(), self._process.cpu_percent()
            if self._primed:
                readings |= {"cpu_pct": total, "process_cpu_pct": own}
            self._primed = True
            memory = self._psutil.virtual_memory()
            readings |= {
                "ram_used_bytes": memory.total - memory.available,
                "ram_total_bytes": memory.total,
                "process_ram_bytes": self._process.memory_info().rss,
            }
        except (OSError, self._psutil.Error):  # a sandbox that hides /proc
            pass
        return readings
