"""The state machine of a run: events of ranks in, commands out. It has no clock, threads or sockets."""

from __future__ import annotations

import math
from typing import Any

from flodl.distributed.coverage import Epochs

from . import reductions
from .arrivals import arrived
from .commands import Command, Evict, Plan, Reduce, Refuse, SavePoint
from .events import Arrived, Event, Failed, Joined, Leaving, Lost, Reduced, Tick
from .run_state import FINISHED, NO_HOLDER, RUNNING, WAITING, RunState
from .settings import CoordinatorSettings

_OPEN = (RUNNING, WAITING)


class Coordinator:
    """Plans windows, closes them, and commits what was trained; the same events give the same commands.

    >>> coordinator = Coordinator(Epochs(num_samples=64, batch_size=8))
    >>> rebuild, reduce = coordinator.handle(0.0, Joined(0))
    >>> reduce.members, reduce.weights, reduce.donor
    ((0,), (0,), 0)
    >>> commit, plan = coordinator.handle(1.0, Reduced((0,), window=0, generation=1, reduce_ms=1.0))
    >>> plan.leases[0].ranges
    ((0, 64),)
    """

    def __init__(self, epochs: Epochs, settings: CoordinatorSettings | None = None) -> None:
        self.run = RunState(epochs, settings or CoordinatorSettings())

    @property
    def status(self) -> str:
        """`waiting` for ranks, `running`, `finished` or `stopped`."""
        return self.run.status

    @property
    def version(self) -> int:
        """The number of committed windows."""
        return self.run.version

    @property
    def committed(self) -> int:
        """The committed batches of all ranks; reports and acknowledgements never count."""
        return self.run.committed

    def handle(self, now_ms: float, event: Event) -> list[Command]:
        """Apply an event that happened at `now_ms`, and return what to do, in this order."""
        run = self.run
        if run.status not in _OPEN:
            return _after_the_end(run, event)
        run.out = []
        if isinstance(event, Arrived):
            arrived(run, event, now_ms)
        elif isinstance(event, Reduced):
            reductions.reduced(run, event, now_ms)
        elif isinstance(event, Tick):
            _tick(run, event, now_ms)
        elif isinstance(event, Joined):
            _join(run, event.rank)
        elif isinstance(event, Lost):
            _lose(run, event.rank, event.reason, now_ms)
        elif isinstance(event, Failed):
            reductions.failed(run, event, now_ms)
        elif isinstance(event, Leaving):
            _leave(run, event.rank)
        if run.round is None and run.status in _OPEN:
            _advance(run, now_ms)
        return run.out

    @property
    def wake_ms(self) -> float:
        """When the next `Tick` is needed; infinity if only other events matter."""
        run = self.run
        if run.status != RUNNING:
            return math.inf
        due = run.planner.next_deadline_ms(run.seats)
        if run.round is not None:
            return min(due, run.round.deadline_ms)
        return min(due, run.meeting.closing_ms)

    def suspects(self, now_ms: float) -> list[int]:
        """Return the ranks that did not answer in time. A `Tick` ends those that it does not call alive."""
        run = self.run
        if run.status != RUNNING:
            return []
        return sorted({*run.planner.overdue(run.seats, now_ms), *_late_in_reduction(run, now_ms)})

    def outstanding(self) -> list[Command]:
        """Return the commands that ranks are working on, to repeat them after a restart of the supervisor."""
        run, commands = self.run, list[Command]()
        generation = run.membership.generation
        if run.round is not None:
            found = run.round
            commands.append(
                Reduce(
                    run.version, found.generation, found.attempt, found.members, found.weights, found.bases,
                    found.donor, found.timeout_ms, "the supervisor was restarted", found.scale,
                )
            )  # fmt: skip
        at_work = [(seat.plan, seat.lease) for seat in run.seats.values() if seat.lease is not None]
        if at_work:
            plans, leases = tuple(plan for plan, _ in at_work), tuple(lease for _, lease in at_work)
            positions = tuple(run.planner.position(run.seats[lease.rank], run.committed) for lease in leases)
            commands.append(
                Plan(run.version, generation, plans, leases, positions, "the supervisor was restarted")
            )
        return commands

    def state(self) -> dict[str, Any]:
        """Return everything but the settings as plain data, for a journal or a save point."""
        return self.run.state()

    @classmethod
    def from_state(cls, state: dict[str, Any], settings: CoordinatorSettings | None = None) -> Coordinator:
        """Continue exactly where `state()` was taken, with the same ranks."""
        coordinator = cls(Epochs.from_state(state["epochs"]), settings)
        coordinator.run.restore(state)
        return coordinator

    @classmethod
    def resume(cls, state: dict[str, Any], settings: CoordinatorSettings | None = None) -> Coordinator:
        """Start again from a save point, with any number of ranks; batches in flight are free again."""
        coordinator = cls(Epochs.from_state(state["epochs"], keep_leases=False), settings)
        run = coordinator.run
        run.version, run.committed = state["version"], state["committed"]
        run.meeting.version = run.first_version = run.version
        run.guard.restore(state["guard"])
        run.membership.generation = state["membership"]["generation"]
        run.planner.num_plans = state["planner"]["num_plans"]
        return coordinator


def _after_the_end(run: RunState, event: Event) -> list[Command]:
    if isinstance(event, Joined | Arrived):
        return [Refuse(event.rank, f"the run is {run.status}")]
    if isinstance(event, Lost) and run.status == FINISHED and event.rank in run.seats:
        del run.seats[event.rank]
        holders = [rank for rank, seat in run.seats.items() if seat.base == run.version]
        if holders:
            reason = f"rank {event.rank}, which may have been saving it, is lost"
            return [SavePoint(run.version, run.epochs.current, holders[0], reason)]
    return []


def _advance(run: RunState, now_ms: float) -> None:
    """Close the window if it is time."""
    if run.status == WAITING:
        if len(run.membership.joining) >= run.settings.start_ranks:
            reductions.close(run, now_ms)
        return
    # How long a window takes is unknown until one is committed; what passed since its start is a lower bound.
    closing_ms = run.meeting.closes(now_ms, window_ms=run.elche.window_ms or now_ms - run.closed_ms)
    # Without any work, ranks that join still have to receive the current version.
    if closing_ms <= now_ms or (run.membership.has_joining and run.meeting.is_empty):
        reductions.close(run, now_ms)


def _join(run: RunState, rank: int) -> None:
    if run.membership.is_known(rank):
        run.out.append(Refuse(rank, f"rank {rank} is already a member; use another number"))
    else:
        run.membership.join(rank)


def _tick(run: RunState, event: Tick, now_ms: float) -> None:
    """Evict ranks that are late and show no sign of life; look again later at the others."""
    for rank in run.planner.overdue(run.seats, now_ms):
        if rank not in event.alive:
            _evict(run, rank, "it did not finish its batches within the deadline", now_ms)
    run.planner.postpone(run.seats, now_ms)
    for rank in _late_in_reduction(run, now_ms):
        if rank not in event.alive:
            _evict(run, rank, "it did not finish the reduction within the deadline", now_ms)
    if _late_in_reduction(run, now_ms) and run.round is not None:
        run.round.deadline_ms = now_ms + run.settings.suspicion.again_ms


def _late_in_reduction(run: RunState, now_ms: float) -> list[int]:
    found = run.round
    return [] if found is None or found.deadline_ms > now_ms else sorted(found.waiting)


def _evict(run: RunState, rank: int, reason: str, now_ms: float) -> None:
    run.out.append(Evict(rank, reason))
    _lose(run, rank, reason, now_ms)


def _lose(run: RunState, rank: int, reason: str, now_ms: float) -> None:
    """Free the batches of a rank that is gone; its part in a reduction counts if that still succeeds."""
    run.membership.lose(rank, reason)
    if rank not in run.seats or run.is_over:
        return
    run.forget(rank)
    found = run.round
    if found is not None:
        found.waiting.discard(rank)
        if rank in found.members and not found.waiting:
            reductions.settle(run, found, now_ms)
    elif not run.has_holder():
        run.stop(f"{NO_HOLDER} {run.version}; the last: {reason}")
    else:
        run.plan(list(run.seats.values()), now_ms)


def _leave(run: RunState, rank: int) -> None:
    seat = run.seats.get(rank)
    if seat is None:
        run.membership.leave(rank)
    else:
        seat.is_leaving = True
