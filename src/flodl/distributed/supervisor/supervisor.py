"""The process that starts ranks, drives the coordinator, and carries out what it decides."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.core import DistributedError
from flodl.core.files import expand_user
from flodl.core.interrupts import uninterrupted
from flodl.distributed.coordination import Coordinator, CoordinatorSettings, Leaving
from flodl.distributed.coverage import Epochs
from flodl.distributed.ranks import Fault, RankInfo, Start, Tell, WorkerFactory

from .answers import handle, lose
from .ending import end_ranks, fetch_consensus, make_outcome
from .journal_file import JournalFile
from .launcher import Launcher, LocalLauncher, RankSpec
from .ledger import CommitReport, Ledger
from .orders import carry_out, finish_transfer
from .outcome import Outcome, SaveReport
from .roster import Member
from .run import Callbacks, Run
from .run_log import Record, RunLog
from .settings import SupervisorSettings
from .signals import ending_on_signals

if TYPE_CHECKING:
    from flodl.distributed.reduction import FlatState, Reducer


def default_reducer(state: FlatState, *, keep_local: bool) -> Reducer:
    from flodl.distributed.reduction import Reducer

    return Reducer(state, keep_local=keep_local)


class Supervisor:
    """Runs ranks until all epochs are committed. `run` blocks; other methods may be called meanwhile, from
    callbacks and from other threads.

    `host` is the address of this host at which ranks find each other: not the loopback address if some run on
    other hosts. With `may_wait`, the run waits for ranks that `add_rank` starts later.
    """

    def __init__(
        self,
        worker_factory: WorkerFactory,
        *,
        ranks: Sequence[RankSpec],
        epochs: Epochs,
        settings: CoordinatorSettings | None = None,
        supervision: SupervisorSettings | None = None,
        reducer: Callable[..., Any] = default_reducer,
        journal: Path | None = None,
        run_log: Path | None = None,
        resume_state: dict[str, Any] | None = None,
        on_commit: Callable[[CommitReport], object] | None = None,
        on_save: Callable[[SaveReport], object] | None = None,
        on_event: Callable[[Record], object] | None = None,
        on_warning: Callable[[str], object] | None = None,
        launcher: Launcher | None = None,
        host: str = "127.0.0.1",
        may_wait: bool = False,
        faults: Sequence[Fault] = (),
    ) -> None:
        from flodl.distributed.reduction import host_store

        settings = settings or CoordinatorSettings(start_ranks=max(1, len(ranks)))
        if not may_wait:
            _check_ranks(ranks, settings)
        self._payload = pack(worker_factory, reducer)
        self._specs, self._faults = list(ranks), tuple(faults)
        self._launcher = launcher or LocalLauncher()
        coordinator = _make_coordinator(epochs, settings, resume_state)
        self._first_version = coordinator.version
        found = None
        if journal is not None:
            found = JournalFile(expand_user(journal), coordinator, may_replace=resume_state is not None)
        self._store = host_store(host)
        self._run = Run(
            coordinator,
            supervision or SupervisorSettings(),
            Callbacks(on_commit, on_save, on_warning),
            RunLog(None if run_log is None else expand_user(run_log), on_event),
            Ledger(epochs.batch_size),
            found,
            self._store,
            may_wait=may_wait,
        )
        self._requests: deque[Callable[[], None]] = deque()
        self._num_ranks = self._num_restarts = 0
        # Ranks whose slow start was reported.
        self._slow = set[int]()
        self._lock = threading.Lock()

    def add_rank(self, spec: RankSpec | None = None) -> int:
        """Start another rank, and return its number. It takes part once it received the current version."""
        with self._lock:
            rank, self._num_ranks = self._num_ranks, self._num_ranks + 1
        found = spec or RankSpec()
        self._request(lambda: self._launch(rank, found))
        return rank

    def remove_rank(self, rank: int) -> None:
        """Let a rank leave, once its work is committed."""
        self._request(lambda: self._leave(rank))

    def tell(self, data: Any) -> None:
        """Pass data to `Worker.told` of every rank before its next plan, and of those that join later.

        Call it from a callback: what ranks receive after a save point is sent once `on_save` returned.
        """
        run = self._run
        run.told = Tell(data)
        for member in run.roster:
            if member.has_joined:
                run.roster.send(member.rank, run.told)

    def stop(self, reason: str = "it was asked to stop") -> None:
        """End the run. Work that is not committed is dropped."""
        self._request(lambda: self._run.end("stopped", reason))

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        self._run.roster.wake()

    def run(self) -> Outcome:
        """Train, and return the outcome. All ranks have ended then, whatever happened.

        Raises DistributedError if the run cannot continue, with the first failure of a rank.
        """
        run = self._run
        with ending_on_signals():
            try:
                for spec in self._specs:
                    self.add_rank(spec)
                while run.over is None:
                    self._turn()
                if not run.over.is_error:
                    fetch_consensus(run)
                    end_ranks(run)
            finally:
                with uninterrupted():
                    run.close()
        return make_outcome(run)

    def _turn(self) -> None:
        """Wait for what happens next, and handle it."""
        run = self._run
        received = run.roster.wait(0.0 if self._requests else run.deadline_in_s())
        run.hearing.listen()
        for rank in run.roster.heard:
            run.hearing.hear(rank)
        for member, message in received:
            handle(run, member, message)
        while self._requests:
            self._requests.popleft()()
        self._check_deadlines()
        is_due = not run.clock.is_paused and run.coordinator.wake_ms <= run.clock.now_ms()
        if is_due and run.over is None:
            run.tick()
        carry_out(run)
        self._replace_lost()
        if run.is_stuck and not self._requests:
            run.end("stopped", "no rank has work, and no event is left to wait for", is_error=True)

    def _launch(self, rank: int, spec: RankSpec) -> None:
        run = self._run
        process = self._launcher.start(spec)
        member = Member(rank, spec, process)
        run.roster.add(member)
        run.note(
            "started", rank=rank, pid=process.pid, host=process.host, device=spec.device, address=spec.address
        )
        num_ranks = len(self._specs) or run.coordinator.run.settings.start_ranks
        store = (self._store.host, self._store.port)
        start = Start(
            RankInfo(rank, spec.device, process.host, num_ranks, store, spec.address),
            self._payload,
            store,
            version=self._first_version,
            is_ahead=run.coordinator.run.settings.meeting.max_ahead > 0,
            digests=run.settings.digests,
            threads=spec.threads or _threads(spec, len(self._specs)),
            beat_s=run.settings.beat_s,
            faults=self._faults,
        )
        run.roster.send(rank, start)

    def _leave(self, rank: int) -> None:
        member = self._run.roster.get(rank)
        if member is not None and member.has_joined:
            self._run.note("leaving", rank=rank)
            self._run.tell(Leaving(rank))
        elif member is not None:
            member.is_leaving = True
            self._run.roster.remove(member)

    def _check_deadlines(self) -> None:
        """End ranks that are late with something that the coordinator does not know about."""
        run, now_s = self._run, time.monotonic()
        limits = run.settings
        for member in run.roster.starting:
            if now_s > member.started_s + limits.start_s:
                self._end(member, f"it did not start within {limits.start_s:g} s")
            elif now_s > member.started_s + limits.slow_start_s and member.rank not in self._slow:
                self._slow.add(member.rank)
                run.warn(
                    f"rank {member.rank} (process {member.process.pid}) has not started after "
                    f"{limits.slow_start_s:g} s. It will be ended after {limits.start_s:g} s."
                )
        if run.saving is not None and now_s > run.saving.deadline_s:
            writer = run.roster.get(run.saving.writer)
            if writer is not None:
                self._end(writer, f"it did not save within {limits.save_s:g} s")
        for rank, transfer in list(run.transfers.items()):
            if now_s > transfer.deadline_s:
                finish_transfer(run, rank, None, f"rank {transfer.donor} did not donate its state in time")

    def _end(self, member: Member, reason: str) -> None:
        run = self._run
        run.warn(f"rank {member.rank} is ended: {reason}.")
        run.note("evict", rank=member.rank, reason=reason)
        member.is_evicted = True
        run.roster.remove(member)
        lose(run, member, reason)

    def _replace_lost(self) -> None:
        run = self._run
        while run.roster.lost and self._num_restarts < run.settings.restarts and run.over is None:
            self._num_restarts += 1
            self.add_rank(run.roster.lost.pop())


def supervise(worker_factory: WorkerFactory, **options: Any) -> Outcome:
    """Train on several ranks; see `Supervisor` for the options."""
    return Supervisor(worker_factory, **options).run()


def pack(worker_factory: WorkerFactory, reducer: Callable[..., Any]) -> bytes:
    """Serialize what ranks need; an error names what cannot be sent to another process."""
    import cloudpickle  # type: ignore[import-untyped]

    try:
        data: bytes = cloudpickle.dumps((worker_factory, reducer))
    except Exception as error:
        raise DistributedError(
            f"the worker cannot be sent to other processes: {type(error).__name__}: {error}. Create open "
            "files, connections, locks and generators inside the factory, which runs in the rank."
        ) from error
    return data


def _threads(spec: RankSpec, num_ranks: int) -> int | None:
    """Ranks on the CPU share its cores; a single one keeps torch's choice."""
    if spec.device != "cpu" or num_ranks < 2:
        return None
    return max(1, (os.cpu_count() or 1) // num_ranks)


def _make_coordinator(
    epochs: Epochs, settings: CoordinatorSettings, resume_state: dict[str, Any] | None
) -> Coordinator:
    if resume_state is None:
        return Coordinator(epochs, settings)
    saved = resume_state["epochs"]
    for name in ("num_samples", "batch_size", "drop_last"):
        own = getattr(epochs, name)
        if own != saved[name]:
            raise DistributedError(
                f"the save point has {name} {saved[name]}, got {own}. Resume with the same data and batch "
                "size: otherwise positions would be trained twice or not at all.",
                path=f"epochs.{name}",
            )
    # A run may be continued for more epochs.
    return Coordinator.resume(
        {**resume_state, "epochs": {**saved, "num_epochs": epochs.num_epochs}}, settings
    )


def _check_ranks(ranks: Sequence[RankSpec], settings: CoordinatorSettings) -> None:
    if len(ranks) < settings.start_ranks:
        raise DistributedError(
            f"{len(ranks)} ranks are given, and the run starts with {settings.start_ranks}. Pass more "
            "ranks, or lower start_ranks.",
            path="ranks",
        )
