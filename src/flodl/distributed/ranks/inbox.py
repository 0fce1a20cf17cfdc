"""The messages of the supervisor, read by a thread while the rank trains."""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue
from typing import Any

from .channel import Channel
from .messages import End, Fetch


class Inbox:
    """Queues messages. `stopping` is set as soon as training has to end.

    A rank whose supervisor is gone ends itself, together with the processes that it started.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="flodl-inbox", daemon=True)
        self._thread.start()

    def next(self) -> Any:
        return self._messages.get()

    def _read(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                end_own_group()
                return
            if isinstance(message, End | Fetch):
                self.stopping.set()
            self._messages.put(message)
            if isinstance(message, End):
                return


def end_own_group() -> None:
    """End this process and the processes that it started, whatever they do."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
