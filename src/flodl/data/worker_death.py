"""Explains that a worker process died, wherever torch or multiprocessing notices it."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from flodl.core.errors import DataError

_INTERNALS = tuple(str(Path(module).parent) for module in (multiprocessing.__file__, torch.__file__))
# How long a process takes to end after its connection is lost.
_END_S = 2.0


class WorkerDied(DataError, RuntimeError):
    """A worker died; also a RuntimeError, as torch raises it."""


def explain_deaths() -> None:
    """Let torch's signal handler raise WorkerDied: it may interrupt any code, even a step."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if getattr(handler, "__module__", None) == signal_handling.__name__:
        signal.signal(signal.SIGCHLD, _Explaining(handler))


def death_of_worker(error: Exception, processes: Sequence[BaseProcess]) -> WorkerDied | None:
    """Return the error that explains `error` if a worker died, else None.

    >>> print(death_of_worker(RuntimeError("DataLoader worker (pid 8) is killed by signal: Killed. "), []))
    a worker of the loader died: process (pid 8) is killed by signal: Killed. It may have run out of ...
    """
    told = ""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, WorkerDied):
            return WorkerDied(link.message)
        if isinstance(link, RuntimeError) and str(link).startswith("DataLoader worker (pid"):
            # The error of the signal handler, which comes first, has the exit code.
            told = str(link)
        link = link.__cause__
    if told:
        return WorkerDied(
            _explanation(told.split(". ")[0].replace("DataLoader worker", "process").rstrip("."))
        )
    if not _is_of_connection(error):
        return None
    try:
        ready = connection.wait([process.sentinel for process in processes], timeout=_END_S)
        for process in processes:
            if process.sentinel in ready:
                # Its connections close a moment before it ends.
                process.join(_END_S)
    except WorkerDied as died:
        return WorkerDied(died.message)
    except RuntimeError as died:
        return death_of_worker(died, ())
    ended = next((process for process in processes if not process.is_alive()), None)
    return None if ended is None else WorkerDied(_explanation(_end_of(ended)))


class _Explaining:
    """Torch's handler for the end of a child process, with an error that explains it."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_in_finalizer(frame):
            # Python would only print the error. The process that reads the batches notices the death, too.
            return
        try:
            self._handler(number, frame)
            return
        except RuntimeError as error:
            died = death_of_worker(error, ())
            if died is None:
                raise
        raise died


def _is_in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _is_of_connection(error: Exception) -> bool:
    """Return whether the connection to a worker failed, rather than code of the user."""
    if not isinstance(error, OSError | EOFError | RuntimeError):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_INTERNALS)


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode or 0
    if code >= 0:
        return f"process (pid {process.pid}) exited unexpectedly with exit code {code}"
    return f"process (pid {process.pid}) is killed by signal: {signal.strsignal(-code) or -code}"


def _explanation(death: str) -> str:
    return (
        f"a worker of the loader died: {death}. {_start_method_advice()}It may have run out of memory "
        "(in a container, also out of shared memory: --shm-size), or the code that creates the samples "
        "may have ended or crashed its process. Use num_workers=0 to find out where."
    )


def _start_method_advice() -> str:
    """Return advice for scripts that every new process runs again."""
    method = multiprocessing.get_start_method()
    if method == "fork":
        return ""
    return (
        f"Processes are started with {method!r} here, which runs the script again in each of them: put the "
        'code that starts training under `if __name__ == "__main__":`. '
    )
