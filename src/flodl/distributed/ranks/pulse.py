"""The signs of life of a rank, sent by a thread while it trains, reduces or waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from .channel import Channel
from .messages import Beat


class Pulse:
    """Sends a `Beat` from time to time, until it is closed. A process that is stopped sends none."""

    def __init__(self, channel: Channel, every_s: float, progress: Callable[[], int]) -> None:
        self._channel, self._every_s, self._progress = channel, every_s, progress
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="flodl-pulse", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        # An error means that the connection is gone, which the inbox notices as well.
        with suppress(OSError, RuntimeError):
            while not self._closed.wait(self._every_s):
                self._channel.send(Beat(self._progress()))
