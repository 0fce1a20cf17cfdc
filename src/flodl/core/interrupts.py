"""Work that must not stop half-way: an interrupt that comes meanwhile waits for its end."""

from __future__ import annotations

import threading
from typing import Any

try:
    # What `signal` wraps for the sake of its names, which takes ten times as long.
    from _signal import SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]
except ImportError:
    from signal import SIGINT, SIGTERM, getsignal, signal

_SIGNALS = (SIGINT, SIGTERM)


class uninterrupted:
    """Let Ctrl+C, and whatever else Python would be told of in between, wait until the block has ended.

    Only the main thread is told of signals, so that others need no more than to run the block.

    >>> from signal import raise_signal
    >>> seen = []
    >>> try:
    ...     with uninterrupted():
    ...         raise_signal(SIGINT)
    ...         seen.append("the rest of the block")
    ... except KeyboardInterrupt:
    ...     seen.append("the interrupt")
    >>> seen
    ['the rest of the block', 'the interrupt']
    """

    def __enter__(self) -> None:
        self._heard: list[tuple[Any, ...]] = []
        self._handlers: dict[int, Any] = {}
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _SIGNALS:
            handler = getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal(number, self._hear)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal(number, handler)
        for told in self._heard:
            self._handlers[told[0]](*told)

    def _hear(self, *told: Any) -> None:
        self._heard.append(told)
