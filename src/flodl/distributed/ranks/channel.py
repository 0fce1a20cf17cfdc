"""How messages travel between the supervisor and a rank: frames of pickled objects over a socket.

Both ends belong to the same program, on a socket pair that nobody else can reach, so pickle is safe here.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

_HEADER = struct.Struct("!Q")
_PIECE = 1 << 20


class Channel(Protocol):
    """A connection to the supervisor; other launchers may carry the same messages in another way."""

    def send(self, message: object) -> None: ...

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message, or None after the timeout; raise EOFError if the other side is gone."""
        ...

    def close(self) -> None: ...


class Connection(Protocol):
    """The supervisor's end. Nothing in it blocks; it is readable when there are messages."""

    def fileno(self) -> int: ...

    @property
    def has_output(self) -> bool:
        """Whether messages wait until the other side reads."""

    def send(self, message: object) -> None: ...

    def flush(self) -> None: ...

    def receive(self) -> list[Any] | None:
        """Return the messages that are complete, or None; raise EOFError if the rank is gone."""

    def close(self) -> None: ...


class Packed:
    """A message for many ranks, pickled once.

    >>> to_frame(Packed("hello")) == to_frame("hello")
    True
    """

    __slots__ = ("frame",)

    def __init__(self, message: object) -> None:
        self.frame = to_frame(message)


def to_frame(message: object) -> bytes:
    if isinstance(message, Packed):
        return message.frame
    data = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(data)) + data


class Frames:
    """Turns received bytes into messages.

    >>> frames = Frames()
    >>> first, second = to_frame("hello"), to_frame("world")
    >>> frames.feed(first + second[:3]), frames.feed(second[3:])
    (['hello'], ['world'])
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._data += data
        messages = []
        start, end = 0, len(self._data)
        while end - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._data, start)
            stop = start + _HEADER.size + size
            if stop > end:
                break
            with memoryview(self._data) as view:
                messages.append(pickle.loads(view[start + _HEADER.size : stop]))
            start = stop
        del self._data[:start]
        return messages


class SocketChannel:
    """The end of a rank: `send` may be called from several threads, `receive` from one.

    >>> one, other = socket.socketpair()
    >>> SocketChannel(one).send([1, 2])
    >>> SocketChannel(other).receive(timeout_s=1.0)
    [1, 2]
    >>> one.close(), other.close()
    (None, None)
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._frames, self._received = Frames(), deque[Any]()
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        frame = to_frame(message)
        with self._sending:
            self._socket.sendall(frame)

    def receive(self, timeout_s: float | None = None) -> Any:
        while not self._received:
            if timeout_s is not None and not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            try:
                data = self._socket.recv(_PIECE)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the supervisor is gone")
            self._received += self._frames.feed(data)
        return self._received.popleft()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Link:
    """The end of the supervisor. Nothing in it blocks, so that a rank that hangs cannot hang the supervisor.

    Messages to a rank that does not read wait in memory, and `has_output` stays true.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._frames = Frames()
        self._output = deque[memoryview]()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def send(self, message: object) -> None:
        self._output.append(memoryview(to_frame(message)))
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes. A broken connection is noticed by `receive`."""
        while self._output:
            piece = self._output[0]
            try:
                num = self._socket.send(piece)
            except BlockingIOError:
                return
            except OSError:
                self._output.clear()
                return
            if num == len(piece):
                self._output.popleft()
            else:
                self._output[0] = piece[num:]

    def receive(self) -> list[Any] | None:
        """Return the messages that are complete; None if there is nothing to read.

        Raises EOFError if the rank is gone.
        """
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise EOFError("its connection ended")
        return self._frames.feed(data)

    def close(self) -> None:
        self._socket.close()
