"""Work that must not stop half-way: an interrupt that comes meanwhile waits for its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl+C, and whatever else Python would be told of in between, wait until the block has ended.

    Only the main thread is told of signals, so that others need no more than to run the block.

    >>> seen = []
    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         seen.append("the rest of the block")
    ... except KeyboardInterrupt:
    ...     seen.append("the interrupt")
    >>> seen
    ['the rest of the block', 'the interrupt']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    handlers = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda *told: heard.append(told))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for told in heard:
            handlers[signal.Signals(told[0])](*told)
