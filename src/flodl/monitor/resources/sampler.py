"""A daemon thread that reads the machine once in a while and tells it as events."""

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

# Long enough for the first processor percentage to mean something.
_FIRST_S = 0.1


class ResourceSampler:
    """Emit a "resources" event every `interval_s` seconds from a thread of its own.

    The data has what this machine can tell: `cpu_pct`, `process_cpu_pct`, `ram_used_bytes`,
    `ram_total_bytes`, `process_ram_bytes`, and under `gpus` a dict for each GPU with `device`, `name`,
    `util_pct`, `vram_used_bytes`, `vram_total_bytes`, `vram_allocated_bytes`, `vram_reserved_bytes`,
    `temperature_c` and `power_w`. A key that cannot be had is absent.

    >>> import queue
    >>> events = queue.Queue()
    >>> with ResourceSampler(events.put, interval_s=0.05):
    ...     event = events.get(timeout=10)
    >>> event.kind, event.data["ram_used_bytes"] > 0
    ('resources', True)
    """

    def __init__(self, emit: Callable[[Event], object], interval_s: float = 1.0, *, rank: int = 0) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s is {interval_s}; give the seconds between two readings.")
        self._emit = emit
        self._interval_s = interval_s
        self._rank = rank
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to sample; a second call changes nothing."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="flodl-resources", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and wait for it; nothing is emitted afterwards."""
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
        wait_s = min(_FIRST_S, self._interval_s)
        while not self._stopping.wait(wait_s):
            wait_s = self._interval_s
            data = read_resources(host, gpus)
            if not data:
                return
            try:
                self._emit(Event("resources", data, rank=self._rank))
            except Exception as error:
                log.warn("resources are no longer sampled: %s: %s", type(error).__name__, error)
                return


def read_resources(host: Host, gpus: GpuReader | None) -> dict[str, Any]:
    """Give one reading of the host and its GPUs as plain data."""
    data = host.read()
    found = with_allocator(gpus(), cuda_pools()) if gpus is not None else []
    if found:
        data["gpus"] = [gpu.to_dict() for gpu in found]
    return data
