"""The clients that follow a run: recent entries are kept for them, and a slow client affects nobody else."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..journal import Entry
from .sse import frame, message

_MAX_RECENT = 20_000
# A client with this much unread data is skipped until it has read, so its memory here is bounded.
MAX_UNREAD_BYTES = 256 * 1024
_RESUME_BELOW_BYTES = 32 * 1024
_MAX_STALLED_S = 60.0


@dataclass(eq=False)
class Subscriber:
    """One open event stream, for one rank."""

    writer: asyncio.StreamWriter
    rank: int = 0
    is_skipped: bool = False
    num_sent: int = 0
    num_read: int = 0
    last_read_s: float = field(default_factory=time.monotonic)

    @property
    def unread_bytes(self) -> int:
        """Bytes that were sent and not read yet."""
        return self.writer.transport.get_write_buffer_size()

    def is_stalled(self) -> bool:
        """Return whether the client has read nothing for a long time, although there is something to read."""
        unread, now_s = self.unread_bytes, time.monotonic()
        if unread == 0 or self.num_sent - unread > self.num_read:
            self.num_read, self.last_read_s = self.num_sent - unread, now_s
        return now_s - self.last_read_s > _MAX_STALLED_S


class Subscribers:
    """Send batches of entries to all subscribers; lives on the server's thread."""

    def __init__(self, *, last_id: int, total_epochs: Callable[[], int]) -> None:
        self._subscribers: list[Subscriber] = []
        self._recent: deque[Entry] = deque()
        self._floor = last_id  # every entry after this number is in `_recent`
        self._total_epochs = total_epochs
        self.last_id = last_id

    def __len__(self) -> int:
        return len(self._subscribers)

    def encode(self, batch: list[Entry]) -> dict[int, bytes]:
        """Encode a batch once for each rank that is followed; may be called on any thread."""
        ranks = {subscriber.rank for subscriber in tuple(self._subscribers)}
        return {rank: self._frame(batch, rank) for rank in ranks}

    def publish(self, batch: list[Entry], frames: dict[int, bytes]) -> None:
        """Send a batch to every subscriber."""
        self._recent.extend(batch)
        self.last_id = batch[-1].id
        while len(self._recent) > _MAX_RECENT:
            self._floor = self._recent.popleft().id
        for subscriber in self._subscribers:
            if subscriber.rank not in frames:  # it joined after the batch was encoded
                frames[subscriber.rank] = self._frame(batch, subscriber.rank)
            self._send(subscriber, frames[subscriber.rank])

    def join(self, subscriber: Subscriber, *, after: int) -> None:
        """Send a subscriber the entries after a number, then all new ones; nothing is lost in between."""
        self.catch_up(subscriber, after=after)
        self._subscribers.append(subscriber)

    def catch_up(self, subscriber: Subscriber, *, after: int) -> None:
        """Send the entries after a number."""
        if after < self._floor:
            # Too old to know what it missed: it has to read the whole state again.
            self._send(subscriber, message("reset", {}, self.last_id))
        else:
            missed = [entry for entry in self._recent if entry.id > after]
            self._send(subscriber, self._frame(missed, subscriber.rank) or b": welcome\n\n")

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def keep_alive(self) -> None:
        """Send a comment to all, so that connections stay open, and drop clients that stopped reading."""
        for subscriber in list(self._subscribers):
            if subscriber.is_stalled():
                subscriber.writer.transport.abort()
                self.leave(subscriber)
            else:
                self._send(subscriber, b": still here\n\n")

    def _frame(self, entries: list[Entry], rank: int) -> bytes:
        return frame(entries, rank=rank, total_epochs=self._total_epochs())

    def _send(self, subscriber: Subscriber, content: bytes) -> None:
        if not content or subscriber.writer.transport.is_closing():
            return
        unread = subscriber.unread_bytes
        if subscriber.is_skipped and unread <= _RESUME_BELOW_BYTES:
            subscriber.is_skipped = False
            content = message("reset", {}, self.last_id)
        elif unread > MAX_UNREAD_BYTES:
            subscriber.is_skipped = True
        if not subscriber.is_skipped:
            subscriber.num_sent += len(content)
            subscriber.writer.write(content)
