"""When a window closes, and who is in it: a quorum and a grace period instead of a full barrier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .settings import MeetingSettings

_SMOOTHING = 0.1
# The shortest grace period, as a share of the longest.
_LEAST_GRACE = 0.2


@dataclass(frozen=True, slots=True)
class Roll:
    """Who contributes to a window: weights in batches, base versions, and the ranks that are late."""

    members: tuple[int, ...]
    weights: tuple[int, ...]
    bases: tuple[int, ...]
    late: tuple[int, ...]
    reason: str


class Meeting:
    """Collects arrivals. A late rank keeps its work and brings it, with its weight, to a later window.

    >>> meeting = Meeting(MeetingSettings(quorum=0.5, max_grace=0.1))
    >>> for rank in range(3):
    ...     meeting.expect(rank, base=0)
    >>> meeting.arrive(0, base=0, weight=40, now_ms=100.0)
    >>> meeting.closes(100.0, window_ms=100.0)
    inf
    >>> meeting.arrive(1, base=0, weight=10, now_ms=101.0)
    >>> meeting.closes(101.0, window_ms=100.0)
    111.0
    >>> meeting.close().late
    (2,)
    """

    def __init__(self, settings: MeetingSettings | None = None) -> None:
        self.settings = settings or MeetingSettings()
        self.version = 0
        # When the window closes if nobody else arrives.
        self.closing_ms = math.inf
        self._ready: dict[int, tuple[int, int]] = {}
        self._at_work: dict[int, int] = {}
        # Ranks without work that hold the current version.
        self._idle: set[int] = set()
        self._missing: set[int] = set()
        self._num_holders = 0
        self._quorum_ms: float | None = None
        self._last_quorum_ms: float | None = None
        self._lateness_ms: float | None = None
        self._window_ms = 0.0

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def is_empty(self) -> bool:
        """True if no rank is ready or at work."""
        return not self._ready and not self._at_work

    def expect(self, rank: int, *, base: int) -> None:
        """A rank starts to train; it counts as arrived if an earlier contribution is in this window."""
        self._at_work[rank] = base
        self._idle.discard(rank)
        if rank not in self._ready:
            self._missing.add(rank)

    def arrive(self, rank: int, *, base: int, weight: int, now_ms: float) -> None:
        """A rank stops training; `weight` is all that it contributes to this window."""
        self._at_work.pop(rank, None)
        if rank in self._missing:
            self._missing.remove(rank)
            since = self._quorum_ms if self._quorum_ms is not None else self._last_quorum_ms
            if since is not None:
                self._learn(now_ms - since)
        if base == self.version and rank not in self._ready:
            self._num_holders += 1
        self._ready[rank] = (base, weight)

    def drop(self, rank: int) -> None:
        """A rank is gone, or its work does not count."""
        self._idle.discard(rank)
        self._at_work.pop(rank, None)
        self._missing.discard(rank)
        entry = self._ready.pop(rank, None)
        if entry is not None and entry[0] == self.version:
            self._num_holders -= 1

    def closes(self, now_ms: float, *, window_ms: float) -> float:
        """Return when the window may close: infinity if more ranks must arrive first."""
        self.closing_ms = math.inf
        # Somebody in it must hold the current version, to which progress is added.
        if not self._ready or not (self._num_holders or self._idle):
            return math.inf
        num, num_missing = len(self._ready), len(self._missing)
        if not num_missing:
            self.closing_ms = now_ms
        elif num + 1e-9 < self.settings.quorum * (num + num_missing):
            self._quorum_ms = None
        else:
            if self._quorum_ms is None:
                self._quorum_ms, self._window_ms = now_ms, window_ms
            self.closing_ms = self._quorum_ms + self._grace_ms()
        return self.closing_ms

    def _grace_ms(self) -> float:
        most = self.settings.max_grace * self._window_ms
        if self._lateness_ms is None:
            return most
        # A rank that is late by a millisecond would wait for a whole window if this became too short.
        return min(most, max(2.0 * self._lateness_ms, _LEAST_GRACE * most))

    def _learn(self, late_ms: float) -> None:
        """Adapt the grace period to ranks for which waiting is worth it."""
        if 0.0 <= late_ms <= self.settings.max_grace * self._window_ms:
            mean = late_ms if self._lateness_ms is None else self._lateness_ms
            self._lateness_ms = mean + _SMOOTHING * (late_ms - mean)

    def close(self) -> Roll:
        """Return who is in the window, and start to collect the next one."""
        ranks = sorted(self._ready)
        late = tuple(sorted(self._missing))
        entries = [self._ready[rank] for rank in ranks]
        num = len(ranks)
        if not late:
            reason = f"all {num} ranks arrived" if num else "no rank has work"
        else:
            reason = f"{num} of {num + len(late)} ranks arrived, and the grace period is over"
        self._ready = {}
        self._missing = set(self._at_work)
        self._num_holders = 0
        self._last_quorum_ms, self._quorum_ms = self._quorum_ms, None
        self.closing_ms = math.inf
        return Roll(
            tuple(ranks),
            tuple(weight for _, weight in entries),
            tuple(base for base, _ in entries),
            late,
            reason,
        )

    def advance(self, version: int, *, members: list[int]) -> None:
        """The members hold a new version; those at work continue from it."""
        self.version = version
        at_work = self._at_work
        for rank in members:
            if rank in at_work:
                at_work[rank] = version
            if rank in self._ready:
                self._ready[rank] = (version, self._ready[rank][1])
        self._num_holders = sum([base == version for base, _ in self._ready.values()])
        self._idle = {rank for rank in members if rank not in at_work and rank not in self._ready}

    def stale(self) -> list[int]:
        """Return the ranks at work whose base is too old for what they would contribute."""
        oldest = self.version - self.settings.max_staleness
        return sorted(rank for rank in self._missing if self._at_work[rank] < oldest)

    def state(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "ready": [[rank, *entry] for rank, entry in self._ready.items()],
            "at_work": [list(pair) for pair in self._at_work.items()],
            "idle": sorted(self._idle),
            "missing": sorted(self._missing),
            "num_holders": self._num_holders,
            "closing_ms": self.closing_ms,
            "times": [self._quorum_ms, self._last_quorum_ms, self._lateness_ms, self._window_ms],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.version, self._num_holders = state["version"], state["num_holders"]
        self.closing_ms = state["closing_ms"]
        self._ready = {rank: (base, weight) for rank, base, weight in state["ready"]}
        self._at_work = dict(state["at_work"])
        self._idle = set(state["idle"])
        self._missing = set(state["missing"])
        self._quorum_ms, self._last_quorum_ms, self._lateness_ms, self._window_ms = state["times"]
