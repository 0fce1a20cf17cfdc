"""Keeping the host out of the way: no collector pauses in the middle, no hidden waits for the device."""

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
# The least time between two collections that visit all objects of the process, 1 % of it at most.
FULL_COLLECTION_EVERY_S = 10.0
_WAITED = "called a synchronizing CUDA operation"
_lock = threading.Lock()
# The threads that must not wait, each as often as it has said so, and what to undo after the last of them.
_hurried: list[int] = []
_afterwards = ExitStack()


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
        """Collect now, when a pause does not hurt, and return how many seconds it took."""
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
    """Disable automatic garbage collection; call `collect()` where a pause does not hurt.

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
        if not _hurried:
            _afterwards.enter_context(_waits_are_heard())
        _hurried.append(thread)
    try:
        yield
    finally:
        with _lock:
            _hurried.remove(thread)
            if not _hurried:
                _afterwards.close()


@contextmanager
def _waits_are_heard() -> Iterator[None]:
    """Let torch warn of waits, and make errors of those that come from a thread which must not.

    Torch's own errors would be for all threads: its setting is one for the process. A backward runs in
    threads of torch's, so a wait inside of one is an error as well, whoever began it.
    """
    before = torch.cuda.get_sync_debug_mode()
    # What Python calls first, without a frame of its own: the error is to end with the line that waits.
    show = warnings._showwarnmsg  # type: ignore[attr-defined]

    def hear(told: warnings.WarningMessage) -> None:
        waited = str(told.message).startswith(_WAITED)
        if waited and (threading.get_ident() in _hurried or torch._C._current_graph_task_id() != -1):
            raise RuntimeError(_WAITED)
        if before or not waited:
            show(told)

    with warnings.catch_warnings():
        # Torch says once that this is a prototype; who trains has not asked for it.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        warnings.filterwarnings("always", message=_WAITED)
        warnings._showwarnmsg = hear  # type: ignore[attr-defined]
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
        if _WAITED not in str(error):
            raise
        where = source_line(error)
        raise StepError(
            f"the host waited for the device{where}. Keep values on the device inside a step (no .item(), "
            "print or `if` on a tensor), and read them after it."
        ) from error
