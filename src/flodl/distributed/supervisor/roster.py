"""The living ranks of a run, their messages, and their signs of life."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from .launcher import RankProcess, RankSpec, wait_for_exit
from .settings import SupervisorSettings

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# How often to look for processes that ended, where the system does not tell.
_POLL_S = 0.05
_DRAIN_S = 0.2


class Member:
    """One rank: its process, and what the supervisor knows about it."""

    __slots__ = (
        "has_joined",
        "held",
        "holds",
        "is_evicted",
        "is_leaving",
        "process",
        "rank",
        "spec",
        "started_s",
    )

    def __init__(self, rank: int, spec: RankSpec, process: RankProcess) -> None:
        self.rank, self.spec, self.process = rank, spec, process
        self.started_s = time.monotonic()
        self.has_joined = False
        # It may end: its work is committed. Or it was ended: what it still sent does not count.
        self.is_leaving = self.is_evicted = False
        # The last version that it adopted.
        self.holds: int | None = None
        # Messages that wait until the rank has received its optimizer state; None if they do not wait.
        self.held: list[object] | None = None


class Gone:
    """A rank has ended."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Roster:
    """Sends to ranks without blocking, and waits for whatever happens first."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        # Those that have not joined yet, and those whose end the system does not tell: nothing that happens
        # for each message looks at all members.
        self._starting: dict[int, Member] = {}
        self._polled: dict[int, Member] = {}
        # Where ranks ran that are lost and not replaced.
        self.lost: list[RankSpec] = []
        # Ranks that sent something, also parts of messages, since the last wait.
        self.heard: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakes, _READ, None)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, rank: int) -> Member | None:
        return self._members.get(rank)

    @property
    def starting(self) -> list[Member]:
        """The members that have not joined yet."""
        return list(self._starting.values())

    def add(self, member: Member) -> None:
        self._members[member.rank] = self._starting[member.rank] = member
        process = member.process
        self._selector.register(process.link, _READ, member)
        if process.sentinel is not None:
            self._selector.register(process.sentinel, _READ, member)
        else:
            self._polled[member.rank] = member

    def join(self, member: Member) -> None:
        member.has_joined = True
        self._starting.pop(member.rank, None)

    def send(self, rank: int, message: object) -> None:
        """Send to a rank; do nothing if it is gone."""
        member = self._members.get(rank)
        if member is None:
            return
        if member.held is not None:
            member.held.append(message)
            return
        link = member.process.link
        link.send(message)
        self._selector.modify(link, _READ | _WRITE if link.has_output else _READ, member)

    def release(self, rank: int, first: object) -> None:
        """Send a message, and then those that were held."""
        member = self._members.get(rank)
        if member is not None:
            held, member.held = member.held or [], None
            for message in (first, *held):
                self.send(rank, message)

    def wake(self) -> None:
        """End `wait` early; may be called from other threads and signal handlers."""
        with suppress(BlockingIOError, OSError):
            self._waker.send(b"w")

    def wait(self, timeout_s: float | None) -> list[tuple[Member, Any]]:
        """Return what ranks sent. The last message of a rank that ended is `Gone`."""
        if self._polled:
            timeout_s = _POLL_S if timeout_s is None else min(timeout_s, _POLL_S)
        found: list[tuple[Member, Any]] = []
        self.heard.clear()
        gone: dict[int, Member] = {}
        for key, mask in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    self._wakes.recv(4096)
                continue
            member: Member = key.data
            if key.fd == member.process.sentinel:
                gone[member.rank] = member
                continue
            if mask & _WRITE:
                member.process.link.flush()
                if not member.process.link.has_output:
                    self._selector.modify(member.process.link, _READ, member)
            if mask & _READ and not self._read(member, found):
                gone[member.rank] = member
        for member in self._polled.values():
            if member.process.exit_reason() is not None:
                gone[member.rank] = member
        for member in gone.values():
            found.append((member, Gone(self._bury(member, found))))
        return found

    def _read(self, member: Member, found: list[tuple[Member, Any]]) -> bool:
        """Return False if the connection ended."""
        try:
            found += [(member, message) for message in member.process.link.receive() or ()]
        except EOFError:
            return False
        self.heard.add(member.rank)
        return True

    def _bury(self, member: Member, found: list[tuple[Member, Any]]) -> str:
        """Read what the rank still sent, and remove it; return why it ended."""
        reason = wait_for_exit(member.process, _DRAIN_S)
        with suppress(EOFError):
            while (messages := member.process.link.receive()) is not None:
                found += [(member, message) for message in messages]
        self.remove(member)
        return reason or "its connection ended"

    def remove(self, member: Member) -> None:
        """End the process of a rank, and everything that it started."""
        if self._members.get(member.rank) is not member:
            return
        del self._members[member.rank]
        self._starting.pop(member.rank, None)
        self._polled.pop(member.rank, None)
        if not member.is_leaving:
            self.lost.append(member.spec)
        process = member.process
        self._selector.unregister(process.link)
        if process.sentinel is not None:
            self._selector.unregister(process.sentinel)
        process.kill()
        process.close()

    def close(self) -> None:
        for member in self:
            self.remove(member)
        self._selector.close()
        self._waker.close()
        self._wakes.close()


class Hearing:
    """Remembers when each rank was last heard of, and when it last made progress.

    Only time in which the supervisor listened counts: if the whole machine stands still, nobody is silent.
    Call `listen` after each wait, of at most `beat_s` seconds, and then `hear` for what was received.

    >>> seconds = iter([0.0, 1.0, 60.0, 61.0, 62.0])
    >>> hearing = Hearing(SupervisorSettings(beat_s=1.0, silence_s=2.0), lambda: next(seconds))
    >>> hearing.listen()
    >>> hearing.hear(0)
    >>> hearing.listen()
    >>> hearing.is_alive(0)
    True
    >>> hearing.listen()
    >>> hearing.is_alive(0)
    False
    """

    def __init__(self, settings: SupervisorSettings, seconds: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._seconds = settings, seconds
        self._last_s = seconds()
        self._listened_s = 0.0
        self._heard_s: dict[int, float] = {}
        self._progress: dict[int, tuple[int, float]] = {}

    def listen(self) -> None:
        """Time passed since the last call, in which what ranks sent would have been heard."""
        now_s = self._seconds()
        self._listened_s += min(now_s - self._last_s, self._settings.beat_s)
        self._last_s = now_s

    def hear(self, rank: int) -> None:
        """A rank sent something."""
        self._heard_s[rank] = self._listened_s
        self._progress.setdefault(rank, (-1, self._listened_s))

    def advance(self, rank: int, progress: int) -> None:
        """A rank reported how far it is."""
        if rank not in self._progress or self._progress[rank][0] != progress:
            self._progress[rank] = (progress, self._listened_s)

    def forget(self, rank: int) -> None:
        self._heard_s.pop(rank, None)
        self._progress.pop(rank, None)

    def is_alive(self, rank: int) -> bool:
        """Return whether the rank was heard of lately, and is not stuck."""
        if rank not in self._heard_s:
            return False
        silent_s = self._listened_s - self._heard_s[rank]
        stuck_s = self._listened_s - self._progress[rank][1]
        return silent_s < self._settings.silence_s and stuck_s < self._settings.stuck_s
