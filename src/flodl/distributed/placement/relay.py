"""The supervisor's end of a connection whose bytes an engine carries."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flodl.distributed.ranks import Frames, to_frame


class Relay:
    """Gives bytes to `forward`, which must not block; an engine calls `feed` and `end` from any thread.

    >>> relay = Relay(print)
    >>> relay.receive()
    >>> relay.feed(to_frame("hello"))
    >>> relay.receive()
    ['hello']
    >>> relay.end("its host is gone")
    >>> relay.receive()
    Traceback (most recent call last):
    EOFError: its host is gone
    >>> relay.close()
    """

    has_output = False

    def __init__(self, forward: Callable[[bytes], object]) -> None:
        self._forward = forward
        self._frames, self._received = Frames(), deque[Any]()
        self._lock = threading.Lock()
        # Readable while there is something to receive.
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._waker.setblocking(False)
        # Why the other side is gone; None while it is not.
        self.ended: str | None = None

    def fileno(self) -> int:
        return self._wakes.fileno()

    def send(self, message: object) -> None:
        if self.ended is None:
            self._forward(to_frame(message))

    def flush(self) -> None:
        """There is nothing to flush: `forward` takes everything."""

    def feed(self, data: bytes) -> None:
        """Bytes from the rank have come."""
        with self._lock:
            self._received += self._frames.feed(data)
        self._wake()

    def end(self, reason: str) -> None:
        """The rank is gone; the first reason counts."""
        with self._lock:
            self.ended = self.ended or reason
        self._wake()

    def receive(self) -> list[Any] | None:
        with self._lock:
            with suppress(BlockingIOError):
                self._wakes.recv(4096)
            if self._received:
                messages = [*self._received]
                self._received.clear()
                if self.ended is not None:
                    self._wake()
                return messages
            if self.ended is not None:
                raise EOFError(self.ended)
            return None

    def close(self) -> None:
        self.end("it was closed")
        with self._lock:
            self._wakes.close()
            self._waker.close()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"w")
