"""Messages between a supervisor and ranks through the queues of a store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flodl.distributed.ranks import Frames, to_frame

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

# A store refuses more than 8 MiB at once.
_PIECE = 4 << 20
UP = "flodl/up"
BEAT_S = 1.0
# Both sides take the other for lost after this silence.
SILENCE_S = 15.0


def down(token: str) -> str:
    """Return the queue of the messages to a rank."""
    return f"flodl/down/{token}"


def letter(token: str, kind: str, data: bytes = b"") -> bytes:
    """Return what a rank puts into the queue of the supervisor.

    >>> open_letter(letter("t1", "data", b"abc"))
    ('t1', 'data', b'abc')
    """
    return json.dumps([token, kind]).encode() + b"\n" + data


def open_letter(text: bytes) -> tuple[str, str, bytes]:
    head, _, data = text.partition(b"\n")
    token, kind = json.loads(head)
    return token, kind, data


def pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def push(store: TCPStore, key: str, data: bytes) -> None:
    # The binding takes bytes, although its stub asks for text.
    queue: Any = store
    queue.queue_push(key, data)


def pop(store: TCPStore, key: str) -> bytes:
    queue: Any = store
    data: bytes = queue.queue_pop(key)
    return data


class StoreChannel:
    """The end of a rank. `last_heard_s` is when the supervisor last showed that it lives."""

    def __init__(self, sender: TCPStore, receiver: TCPStore, token: str) -> None:
        self._sender, self._receiver, self._token = sender, receiver, token
        self._frames, self._received = Frames(), list[Any]()
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self.last_heard_s = time.monotonic()
        threading.Thread(target=self._beat, name="flodl-beat", daemon=True).start()

    def send(self, message: object) -> None:
        with self._sending:
            for piece in pieces(to_frame(message)):
                push(self._sender, UP, letter(self._token, "data", piece))

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message; the timeout is that of the connection."""
        while not self._received:
            try:
                data = pop(self._receiver, down(self._token))
            except RuntimeError as error:
                raise EOFError("the supervisor is gone") from error
            self.last_heard_s = time.monotonic()
            self._received += self._frames.feed(data)
        return self._received.pop(0)

    @property
    def is_closed(self) -> bool:
        return self._stopped.is_set()

    def close(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            try:
                with self._sending:
                    push(self._sender, UP, letter(self._token, "beat"))
            except RuntimeError:
                return
