"""Everything that a supervisor knows about its run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flodl.core import log
from flodl.distributed.coordination import Command, Coordinator, Event, Plan, Reduce, SavePoint, Tick
from flodl.distributed.ranks import Consensus, Failure, Save, Tell

from .clock import Clock
from .journal_file import JournalFile
from .ledger import CommitReport, Ledger
from .outcome import SaveReport
from .roster import Hearing, Roster
from .run_log import RunLog
from .settings import SupervisorSettings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions of the caller. If `on_save` returns True, the run ends, for example to stop early."""

    on_commit: Callable[[CommitReport], object] | None = None
    on_save: Callable[[SaveReport], object] | None = None
    on_warning: Callable[[str], object] | None = None


@dataclass(slots=True)
class Saving:
    """A save point that is not confirmed yet."""

    message: Save
    writer: int
    deadline_s: float


@dataclass(slots=True)
class Transfer:
    """Optimizer state on its way from a donor to another rank."""

    donor: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Over:
    """Why the run ends. `is_error` if it did not end as asked."""

    status: str
    reason: str
    is_error: bool = False


@dataclass(slots=True)
class Run:
    """The parts of a supervisor, and what it is waiting for."""

    coordinator: Coordinator
    settings: SupervisorSettings
    callbacks: Callbacks
    log: RunLog
    ledger: Ledger
    journal: JournalFile | None
    store: TCPStore
    # Whether missing ranks may still come, so that the run waits for them.
    may_wait: bool = False
    roster: Roster = field(default_factory=Roster)
    clock: Clock = field(default_factory=Clock)
    # Commands that are not carried out yet; those after a save point wait for it.
    pending: deque[Command | Save] = field(default_factory=deque)
    saving: Saving | None = None
    transfers: dict[int, Transfer] = field(default_factory=dict)
    # Members of the last reduction that have to receive a version.
    receivers: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    # Those that a warning has shown.
    shown_tracebacks: set[str] = field(default_factory=set)
    consensus: Consensus | None = None
    over: Over | None = None
    # The last message of the caller to all workers, for those that join.
    told: Tell | None = None
    hearing: Hearing = field(init=False)

    def __post_init__(self) -> None:
        self.hearing = Hearing(self.settings)

    def tell(self, event: Event) -> None:
        """Pass an event to the coordinator, and queue what it asks for."""
        now_ms = self.clock.now_ms()
        if self.journal is not None:
            self.journal.write(event, now_ms)
        for command in self.coordinator.handle(now_ms, event):
            if isinstance(command, Reduce) and self.coordinator.run.round is not None:
                self.ledger.reduce(command.window, self.coordinator.run.round.work)
            elif isinstance(command, Plan):
                self.ledger.plan(command)
            self.pending.append(self._with_state(command))

    def _with_state(self, command: Command) -> Command | Save:
        """Add the state at this moment to a save point; later events are not part of it."""
        if not isinstance(command, SavePoint):
            return command
        if self.journal is not None:
            self.journal.mark(self.coordinator)
        return Save(command, self.coordinator.state())

    def end(self, status: str, reason: str, *, is_error: bool = False) -> None:
        """End the run; the first reason counts."""
        if self.over is None:
            self.over = Over(status, reason, is_error)
            self.pending.clear()

    def tick(self) -> None:
        """Tell the coordinator that time passed, and which of the ranks that are late show signs of life."""
        suspects = self.coordinator.suspects(self.clock.now_ms())
        self.tell(Tick(tuple(rank for rank in suspects if self.hearing.is_alive(rank))))

    def deadline_in_s(self) -> float:
        """Return how long to wait for ranks at most, before a deadline has to be checked."""
        now_s = time.monotonic()
        deadlines = [transfer.deadline_s - now_s for transfer in self.transfers.values()]
        if self.saving is not None:
            deadlines.append(self.saving.deadline_s - now_s)
        for member in self.roster.starting:
            deadlines.append(member.started_s + self.settings.start_s - now_s)
        if not self.clock.is_paused:
            deadlines.append((self.coordinator.wake_ms - self.clock.now_ms()) / 1000.0)
        return max(0.0, min([*deadlines, self.settings.beat_s]))

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can happen any more; every plan and every reduction has a deadline."""
        is_idle = self.coordinator.status == "running" and self.coordinator.wake_ms == float("inf")
        if not is_idle or self.clock.is_paused or self.pending or self.may_wait:
            return False
        return not self.roster.starting

    def holders(self) -> list[int]:
        """Return the ranks that hold the current version."""
        version = self.coordinator.version
        return [member.rank for member in self.roster if member.holds == version]

    def warn(self, text: str) -> None:
        """Report what the user should know; by default, to the log."""
        if self.callbacks.on_warning is not None:
            self.callbacks.on_warning(text)
        else:
            log.warn("%s", text)

    def note(self, kind: str, **fields: Any) -> None:
        self.log.write(kind, **fields)

    def close(self) -> None:
        """End all ranks at once, and close files."""
        self.roster.close()
        if self.journal is not None:
            self.journal.close()
        self.log.close()
