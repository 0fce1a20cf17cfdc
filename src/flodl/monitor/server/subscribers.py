"""Those who watch: what happened lately is kept for them, and a slow one costs nobody anything."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..journal import Entry
from .sse import frame, message

_MOST_RECENT = 20_000
# A reader that has this much waiting is left out until it has read; its memory here never grows beyond it.
MOST_WAITING_BYTES = 256 * 1024
_ENOUGH_READ_BYTES = 32 * 1024
_MOST_STALLED_S = 60.0


@dataclass(eq=False)
class Watcher:
    """One open stream of events, of one rank."""

    writer: asyncio.StreamWriter
    rank: int = 0
    missed: bool = False
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were handed over and not taken yet."""
        return self.writer.transport.get_write_buffer_size()


class Audience:
    """Send batches of entries to all who watch; lives on the server's own thread."""

    def __init__(self, *, last_id: int, total_epochs: Callable[[], int]) -> None:
        self._watchers: list[Watcher] = []
        self._recent: deque[Entry] = deque()
        self._floor = last_id  # everything after this number is in `_recent`
        self._total_epochs = total_epochs
        self.last_id = last_id

    def __len__(self) -> int:
        return len(self._watchers)

    def prepared(self, batch: list[Entry]) -> dict[int, bytes]:
        """Encode a batch, once for each rank that is watched; may be called on any thread."""
        return {
            rank: self._frame(batch, rank) for rank in {watcher.rank for watcher in tuple(self._watchers)}
        }

    def publish(self, batch: list[Entry], frames: dict[int, bytes]) -> None:
        """Send a batch to everybody."""
        self._recent.extend(batch)
        self.last_id = batch[-1].id
        while len(self._recent) > _MOST_RECENT:
            self._floor = self._recent.popleft().id
        for watcher in self._watchers:
            if watcher.rank not in frames:  # it has joined just now
                frames[watcher.rank] = self._frame(batch, watcher.rank)
            self._send(watcher, frames[watcher.rank])

    def join(self, watcher: Watcher, *, after: int) -> None:
        """Let a reader catch up from a number on, and then follow; nothing can come between the two."""
        self.catch_up(watcher, after=after)
        self._watchers.append(watcher)

    def catch_up(self, watcher: Watcher, *, after: int) -> None:
        """Send what came after a number."""
        if after < self._floor:
            # Too long ago to tell what it missed: it should read the state anew.
            self._send(watcher, message("reset", {}, self.last_id))
        else:
            missed = [entry for entry in self._recent if entry.id > after]
            self._send(watcher, self._frame(missed, watcher.rank) or b": welcome\n\n")

    def leave(self, watcher: Watcher) -> None:
        """Forget a reader."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def greet(self) -> None:
        """Send an empty line to all, so that connections stay open, and drop who has long stopped reading."""
        for watcher in list(self._watchers):
            if watcher.missed and time.monotonic() - watcher.heard_s > _MOST_STALLED_S:
                watcher.writer.transport.abort()
                self.leave(watcher)
            else:
                self._send(watcher, b": still here\n\n")

    def _frame(self, entries: list[Entry], rank: int) -> bytes:
        return frame(entries, rank=rank, total_epochs=self._total_epochs())

    def _send(self, watcher: Watcher, content: bytes) -> None:
        if not content or watcher.writer.transport.is_closing():
            return
        waiting = watcher.waiting_bytes
        if watcher.missed and waiting <= _ENOUGH_READ_BYTES:
            watcher.missed = False
            content = message("reset", {}, self.last_id)
        elif waiting > MOST_WAITING_BYTES:
            watcher.missed = True
        if not watcher.missed:
            watcher.heard_s = time.monotonic()
            watcher.writer.write(content)
