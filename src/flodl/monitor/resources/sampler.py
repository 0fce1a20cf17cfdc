"""A daemon thread that samples the hardware and emits the readings as events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from flodl.core import log

from ..events import Event
from .allocator import cuda_pools
from .drivers import find_gpus
from .gpus import GpuReader, with_allocator
from .host import Host

# Long enough for a meaningful first CPU percentage.
_FIRST_WAIT_S = 0.1


class ResourceSampler:
    """Emit a "resources" event every `interval_s` seconds from its own thread.

    The data contains what this machine reports: `cpu_pct`, `process_cpu_pct`, `ram_used_bytes`,
    `ram_total_bytes`, `process_ram_bytes`, and under `gpus` a dict for each GPU with `device`, `name`,
    `util_pct`, `vram_used_bytes`, `vram_total_bytes`, `vram_allocated_bytes`, `vram_reserved_bytes`,
    `temperature_c` and `power_w`. Unavailable values are omitted.

    >>> import queue
    >>> events = queue.Queue()
    >>> with ResourceSampler(events.put, interval_s=0.05):
    ...     event = events.get(timeout=10)
    >>> event.kind, event.data["ram_used_bytes"] > 0
    ('resources', True)
    """

    def __init__(self, emit: Callable[[Event], object], interval_s: float = 1.0, *, rank: int = 0) -> None:
        if not interval_s > 0:
            raise ValueError(
                f"interval_s is {interval_s}. Pass a positive number of seconds between readings."
            )
        self._emit = emit
        self._interval_s = interval_s
        self._rank = rank
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start sampling; a second call has no effect."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="flodl-resources", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread and wait for it; no events are emitted afterwards."""
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        host, gpus = Host(), find_gpus()
        host.read()
        wait_s = min(_FIRST_WAIT_S, self._interval_s)
        while not self._stopping.wait(wait_s):
            wait_s = self._interval_s
            data = read_resources(host, gpus)
            if not data:
                return
            try:
                self._emit(Event("resources", data, rank=self._rank))
            except Exception as error:
                log.warn("resource sampling stopped: %s: %s", type(error).__name__, error)
                return


def read_resources(host: Host, gpus: GpuReader | None) -> dict[str, Any]:
    """Return one reading of the host and its GPUs as plain data."""
    data = host.read()
    found = with_allocator(gpus(), cuda_pools()) if gpus is not None else []
    if found:
        data["gpus"] = [gpu.to_dict() for gpu in found]
    return data
