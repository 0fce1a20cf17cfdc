"""What happens when a rank has finished a plan."""

from __future__ import annotations

import math

from .commands import Refuse
from .events import Arrived
from .run_state import RunState
from .seats import NO_VERSION, Seat, Work

# A plan of less than this share of a window is not worth it.
_SHORTEST = 0.25


def arrived(run: RunState, event: Arrived, now_ms: float) -> None:
    """Take the work of a rank to the meeting, and let the rank continue if it may run ahead."""
    rank = event.rank
    seat = run.seats.get(rank)
    # The numbers of plans are unique, so this refuses what an earlier process of the rank reports, too.
    if seat is None or seat.lease is None or seat.plan != event.plan:
        refusal = run.membership.refusal(rank, generation=event.generation)
        run.out.append(Refuse(rank, refusal or f"plan {event.plan} of rank {rank} is not open"))
        return
    lease, seat.lease = seat.lease, None
    if seat.is_recalled:
        _refuse_stale(run, seat, event)
        return
    if not math.isfinite(event.loss) or not 0 <= event.steps <= lease.batches:
        _discard(run, seat, [(lease, 0), *seat.ready], event, now_ms)
        return
    run.elche.report(
        rank,
        steps=event.steps,
        compute_ms=event.compute_ms,
        delivered_ms=event.delivered_ms,
        fill_ms=event.fill_ms,
    )
    seat.ready.append((lease, event.steps))
    seat.ready_steps += event.steps
    run.meeting.arrive(rank, base=seat.base, weight=seat.ready_steps, now_ms=now_ms)
    most_ahead = run.settings.meeting.max_ahead
    if most_ahead and not seat.is_leaving:
        # What is not committed yet, in windows of this rank.
        ahead = (seat.ready_steps + seat.reducing_steps) / max(1, run.elche.counts[rank])
        if ahead < most_ahead + 0.5:
            _plan_ahead(run, seat, most_ahead + 1.5 - ahead, now_ms)


def _plan_ahead(run: RunState, seat: Seat, max_windows: float, now_ms: float) -> None:
    window_ms = run.elche.window_ms
    # A rank that is late gets less, so that it is back for the next meeting that it can reach.
    until_ms = run.closed_ms
    if window_ms:
        until_ms += window_ms * max(1, math.ceil((now_ms - run.closed_ms) / window_ms + _SHORTEST))
    plan = run.planner.plan_ahead(
        seat,
        max_windows,
        window=run.version + (0 if run.round is None else 1),
        generation=run.membership.generation,
        committed=run.committed,
        now_ms=now_ms,
        until_ms=until_ms,
    )
    if plan is not None:
        run.meeting.expect(seat.rank, base=seat.base)
        run.out.append(plan)


def _refuse_stale(run: RunState, seat: Seat, event: Arrived) -> None:
    """Its batches were given to others. Its speed is worth knowing, so that the next plan is shorter."""
    run.elche.report(
        seat.rank, steps=event.steps, compute_ms=event.compute_ms, delivered_ms=event.delivered_ms
    )
    age = run.version - seat.base
    seat.is_recalled, seat.base = False, NO_VERSION
    most = run.settings.meeting.max_staleness
    run.out.append(Refuse(seat.rank, f"its work started {age} versions ago, and at most {most} are allowed"))


def _discard(run: RunState, seat: Seat, work: Work, event: Arrived, now_ms: float) -> None:
    """Free the batches of a rank whose weights are not usable; it receives the next version."""
    for lease, _ in work:
        run.epochs.give_back(lease)
    run.meeting.drop(seat.rank)
    seat.ready, seat.ready_steps, seat.base = [], 0, NO_VERSION
    if math.isfinite(event.loss):
        reason = f"rank {seat.rank} reports {event.steps} steps of a plan of {work[0][0].batches}"
    else:
        reason = f"the loss of rank {seat.rank} is {event.loss}: its work is left out of the mean"
    run.out.append(Refuse(seat.rank, reason))
    run.num_refused += 1
    if run.num_refused >= 3 * len(run.seats) or (run.round is None and not run.has_holder()):
        run.stop(
            f"no usable weights of version {run.version} are left, after {run.num_refused} refusals: {reason}"
        )
    elif run.round is None:
        run.plan(list(run.seats.values()), now_ms)
