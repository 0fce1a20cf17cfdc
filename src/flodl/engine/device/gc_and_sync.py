"""Avoid pauses of the host: garbage collection only on request, hidden device syncs as errors."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from flodl.core import StepError

from .error_text import source_line

# New containers since the last collection; about 100 MB of small dictionaries.
MANY_OBJECTS = 500_000
# The minimum time between two collections of all objects of the process, so that they take 1 % of it at most.
FULL_COLLECTION_EVERY_S = 10.0
_WAITED = "called a synchronizing CUDA operation"
_lock = threading.Lock()
# The threads that must not wait, once per active context, and the cleanup after the last of them.
_strict_threads: list[int] = []
_cleanup = ExitStack()


def is_wait(error: BaseException) -> bool:
    """Return whether an error was raised because the host waited for the device."""
    return isinstance(error, RuntimeError) and _WAITED in str(error)


class Collector:
    """Collect garbage when `collect` is called, and not automatically; created by `calm_collector`."""

    # When all objects of the process were last visited, which takes as long as a short run (0.1 s).
    _last_full_s = time.perf_counter()

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        # Whether objects from before the start may be garbage.
        self._has_old = True

    def begin(self) -> None:
        """Freeze what exists; collect first if that is due, or if garbage may hold memory of a device."""
        is_cuda_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if is_cuda_used or self._is_full_due():
            self._collect_all()
        else:
            gc.freeze()

    def collect(self) -> float:
        """Collect now, when a pause does no harm, and return how many seconds it took."""
        started = time.perf_counter()
        if self._has_old and self._is_full_due():
            self._collect_all()
        else:
            gc.collect()
        self.pauses_s.append(time.perf_counter() - started)
        return self.pauses_s[-1]

    def collect_if_growing(self) -> None:
        """Collect early if many objects were created since the last collection."""
        if gc.get_count()[0] > MANY_OBJECTS:
            self.collect()

    def _is_full_due(self) -> bool:
        return time.perf_counter() - Collector._last_full_s > FULL_COLLECTION_EVERY_S

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        Collector._last_full_s, self._has_old = time.perf_counter(), False


@contextmanager
def calm_collector() -> Iterator[Collector]:
    """Disable automatic garbage collection; call `collect()` where a pause does no harm.

    Objects that exist at the start (the model, the modules) are frozen, so a collection only visits new ones
    and is quick. At the end the previous state is restored.

    >>> with calm_collector() as collector:
    ...     gc.isenabled(), collector.collect() >= 0
    (False, True)
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    collector = Collector()
    collector.begin()
    gc.disable()
    try:
        yield collector
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def waits_are_errors() -> Iterator[None]:
    """Raise where this thread waits for a CUDA device; others, such as one that logs, may wait."""
    thread = threading.get_ident()
    with _lock:
        if not _strict_threads:
            _cleanup.enter_context(_intercept_waits())
        _strict_threads.append(thread)
    try:
        yield
    finally:
        with _lock:
            _strict_threads.remove(thread)
            if not _strict_threads:
                _cleanup.close()


@contextmanager
def _intercept_waits() -> Iterator[None]:
    """Let torch warn about waits, and raise an error if the thread must not wait.

    Torch's own error mode would apply to all threads of the process. A backward runs in torch's own threads,
    so a wait inside one is always an error, whichever thread started it.
    """
    before = torch.cuda.get_sync_debug_mode()
    # Python calls this directly, so the traceback of the error ends at the line that waits.
    show = warnings._showwarnmsg  # type: ignore[attr-defined]

    def intercept(warning: warnings.WarningMessage) -> None:
        waited = str(warning.message).startswith(_WAITED)
        if waited and (threading.get_ident() in _strict_threads or torch._C._current_graph_task_id() != -1):
            raise RuntimeError(_WAITED)
        if before or not waited:
            show(warning)

    with warnings.catch_warnings():
        # Torch warns once that this mode is a prototype, which does not concern the user.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        warnings.filterwarnings("always", message=_WAITED)
        warnings._showwarnmsg = intercept  # type: ignore[attr-defined]
        torch.cuda.set_sync_debug_mode(before or "warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
            warnings._showwarnmsg = show  # type: ignore[attr-defined]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Turn any hidden wait for a CUDA device into an error that shows the line."""
    if not torch.cuda.is_available():
        yield
        return
    try:
        with waits_are_errors():
            yield
    except RuntimeError as error:
        if not is_wait(error):
            raise
        where = source_line(error)
        raise StepError(
            f"the host waited for the device{where}. Keep values on the device inside a step (no .item(), "
            "print or `if` on a tensor), and read them after it."
        ) from error
