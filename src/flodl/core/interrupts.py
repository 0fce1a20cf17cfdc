"""Delaying signals such as Ctrl+C until a block has finished."""

from __future__ import annotations

import threading
from typing import Any

try:
    # The `signal` module wraps these functions to return enums, which takes ten times as long.
    from _signal import SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]
except ImportError:
    from signal import SIGINT, SIGTERM, getsignal, signal

_SIGNALS = (SIGINT, SIGTERM)


class uninterrupted:
    """Delay SIGINT (Ctrl+C) and SIGTERM until the block has finished.

    Python runs signal handlers in the main thread only; in other threads this does nothing.

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
        self._received: list[tuple[Any, ...]] = []
        self._handlers: dict[int, Any] = {}
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _SIGNALS:
            handler = getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal(number, self._receive)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal(number, handler)
        for arguments in self._received:
            self._handlers[arguments[0]](*arguments)

    def _receive(self, *arguments: Any) -> None:
        self._received.append(arguments)
