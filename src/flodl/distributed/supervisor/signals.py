"""Ending all ranks when the supervisor is asked to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(BaseException):
    """SIGTERM arrived."""


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the ranks end first; then deliver it.

    Ctrl+C raises KeyboardInterrupt anyway. Other threads than the main thread cannot handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Any = signal.getsignal(signal.SIGTERM)
    if previous is not signal.SIG_DFL:
        # The program has its own way to end, which may raise as well.
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    except Terminated:
        signal.signal(signal.SIGTERM, previous)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
