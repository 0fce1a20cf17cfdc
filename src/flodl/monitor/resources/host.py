"""CPU and memory usage of the host and of this process."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Host:
    """Read CPU and memory usage; without psutil, readings are empty.

    Percentages are means since the previous reading, so the first reading has none. The percentage of the
    process may exceed 100: it is the sum over all cores.
    """

    def __init__(self) -> None:
        self._has_read = False
        self._psutil: Any = None
        try:
            self._psutil = import_module("psutil")
        except ImportError:
            return
        self._process = self._psutil.Process()

    def read(self) -> dict[str, Any]:
        """Return the known values as plain data."""
        if self._psutil is None:
            return {}
        readings: dict[str, Any] = {}
        try:
            total, own = self._psutil.cpu_percent(), self._process.cpu_percent()
            if self._has_read:
                readings |= {"cpu_pct": total, "process_cpu_pct": own}
            self._has_read = True
            memory = self._psutil.virtual_memory()
            readings |= {
                "ram_used_bytes": memory.total - memory.available,
                "ram_total_bytes": memory.total,
                "process_ram_bytes": self._process.memory_info().rss,
            }
        except (OSError, self._psutil.Error):  # a sandbox that hides /proc
            pass
        return readings
