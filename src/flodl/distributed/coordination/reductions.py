"""From the end of a window to its commit: close, reduce, repeat after a failure, commit."""

from __future__ import annotations

import math
from dataclasses import replace

from .commands import Commit, Finished, Rebuild, Reduce
from .events import Failed, Reduced
from .run_state import FINISHED, NO_HOLDER, RUNNING, WAITING, RunState
from .seats import Round, Seat, Work


def close(run: RunState, now_ms: float) -> None:
    """Publish the changes of the membership, and reduce what has arrived."""
    generation = run.membership.publish()
    if generation is not None:
        for rank in generation.added:
            run.seats[rank] = Seat(rank)
            run.elche.join(rank)
        run.out.append(Rebuild(generation.number, generation.members, generation.reason))
        if run.status == WAITING:
            # The first rank has the initial weights, or those of the save point.
            run.seats[generation.members[0]].base = run.version
            run.status = RUNNING
    roll = run.meeting.close()
    entries = {rank: (weight, base) for rank, weight, base in zip(roll.members, roll.weights, roll.bases)}
    work: dict[int, Work] = {}
    for rank, seat in run.seats.items():
        if rank in entries:
            work[rank] = seat.ready
            seat.reducing_steps, seat.ready, seat.ready_steps = seat.ready_steps, [], 0
        elif seat.lease is None:
            # It has no work, and receives the new version.
            entries[rank] = (0, seat.base)
    if run.settings.shared:
        _share(run, work)
    members = tuple(sorted(entries))
    weights, bases = zip(*[entries[rank] for rank in members])
    run.round = Round(members, weights, bases, work, roll.late)
    run.closed_ms = now_ms
    _reduce(run, run.round, roll.reason, now_ms)


def _reduce(run: RunState, found: Round, reason: str, now_ms: float) -> None:
    if run.version == run.first_version and run.version not in found.bases:
        # Nothing is committed yet, and the first rank is lost: another one has the initial weights, too.
        found.bases = (run.version, *found.bases[1:])
        run.seats[found.members[0]].base = run.version
    holders = [rank for rank, base in zip(found.members, found.bases) if base == run.version]
    if not holders:
        _reopen(run, found, now_ms)
        return
    suspicion = run.settings.suspicion
    known_ms = run.reduce_ms
    timeout_ms = suspicion.first_reduce_ms if known_ms is None else suspicion.deadline_ms(known_ms)
    timeout_ms *= found.patience
    found.begin(holders[0], run.membership.generation, timeout_ms)
    found.scale = _scale(run, found)
    found.deadline_ms = now_ms + timeout_ms + suspicion.answer_ms
    run.out.append(
        Reduce(
            run.version,
            found.generation,
            found.attempt,
            found.members,
            found.weights,
            found.bases,
            found.donor,
            timeout_ms,
            reason,
            found.scale,
        )
    )


def _scale(run: RunState, found: Round) -> float:
    """Return how much of the mean progress counts.

    With late ranks, the work of one period is spread over several windows. Each rank counts with its share of
    the speed of all; the sum over these windows is then the mean over all ranks, and not several full steps.
    """
    is_whole = not found.late and all(
        base == run.version for base, weight in zip(found.bases, found.weights) if weight
    )
    total = run.elche.total
    if is_whole or not total:
        return 1.0
    counts = run.elche.counts
    present = sum(counts.get(rank, 0) for rank, weight in zip(found.members, found.weights) if weight)
    return min(1.0, present / total) if present else 1.0


def _reopen(run: RunState, found: Round, now_ms: float) -> None:
    """All members that held the current version are lost: wait for another rank that holds it."""
    run.round = None
    if not run.has_holder():
        run.stop(f"{NO_HOLDER} {run.version}")
        return
    for rank, work in found.work.items():
        seat = run.seats[rank]
        seat.ready, seat.reducing_steps = [*work, *seat.ready], 0
        seat.ready_steps = sum(steps for _, steps in seat.ready)
        run.meeting.arrive(rank, base=seat.base, weight=seat.ready_steps, now_ms=now_ms)
        if seat.lease is not None:
            run.meeting.expect(rank, base=seat.base)


def reduced(run: RunState, event: Reduced, now_ms: float) -> None:
    found = run.round
    if found is None or event.window != run.version or event.generation != found.generation:
        return
    found.waiting.difference_update(event.ranks)
    found.reduce_ms = max(found.reduce_ms, event.reduce_ms)
    if event.divergence is not None:
        worst = event.divergence if math.isfinite(event.divergence) else math.inf
        found.divergence = max(worst, found.divergence or 0.0)
    if not found.waiting:
        settle(run, found, now_ms)


def failed(run: RunState, event: Failed, now_ms: float) -> None:
    found = run.round
    if found is None or event.window != run.version or event.generation != found.generation:
        return
    found.waiting.discard(event.rank)
    found.failures.append(f"rank {event.rank}: {event.reason}")
    if not found.waiting:
        settle(run, found, now_ms)


def settle(run: RunState, found: Round, now_ms: float) -> None:
    """All living members have reported: commit, or repeat the reduction without those that are lost."""
    lost = {rank for rank in found.members if rank not in run.seats}
    if len(lost) == len(found.members) and not run.has_holder():
        run.stop(f"{NO_HOLDER} {run.version}")
    elif not found.failures and len(lost) < len(found.members):
        # Where all survivors have the result, the work of a rank that was lost since is part of it.
        _commit(run, found, now_ms)
    elif not lost and found.attempt + 1 >= run.settings.max_attempts:
        run.stop(f"the reduction failed {found.attempt + 1} times; the last: {found.failures[0]}")
    else:
        _repeat(run, found, lost, now_ms)


def _share(run: RunState, work: dict[int, Work]) -> None:
    """A rank that completed its plan has trained the batches of all others in it, too."""
    complete = [
        rank for rank, own in work.items() if own and all(steps == lease.batches for lease, steps in own)
    ]
    if not complete:
        run.free_orphans()
        return
    heir, orphans, run.orphans = complete[0], run.orphans, []
    for rank in work.keys() - set(complete):
        orphans += [lease for lease, _ in work.pop(rank)]
    work[heir] = [*work[heir], *((lease, lease.batches) for lease in orphans)]


def _repeat(run: RunState, found: Round, lost: set[int], now_ms: float) -> None:
    left = [leases for rank in sorted(lost & found.work.keys()) for leases in found.work.pop(rank)]
    if run.settings.shared and found.work:
        found.work[min(found.work)] += left
    else:
        for lease, _ in left:
            run.epochs.give_back(lease)
    if not lost:
        # All members live: they may need more time, on a machine that is busy.
        found.patience *= 2.0
    found.remove(lost)
    why = found.failures[0] if found.failures else "its members are lost"
    # A process group that failed cannot be used again. Ranks that join wait for the next window.
    generation = run.membership.publish(joins=False, force=True, reason=f"the reduction failed: {why}")
    if generation is not None:
        run.out.append(Rebuild(generation.number, generation.members, generation.reason))
    _reduce(run, found, f"again, because it failed: {why}", now_ms)


def _commit(run: RunState, found: Round, now_ms: float) -> None:
    """Count the work of the members, and plan the next window."""
    batches = samples = most = 0
    for work in found.work.values():
        own = 0
        for lease, steps in work:
            samples += run.epochs.commit(lease, batches=steps)
            own += steps
        batches += own
        if own > most:
            most = own
    run.version += 1
    run.committed += batches
    run.round, run.reduce_ms = None, found.reduce_ms
    seats = [run.seats[rank] for rank in found.members if rank in run.seats]
    for seat in seats:
        seat.base, seat.reducing_steps = run.version, 0
    run.meeting.advance(run.version, members=[seat.rank for seat in seats])
    run.recall_stale()
    closed = run.epochs.finish()
    reasons: tuple[str, ...] = ()
    if batches:
        run.num_refused = 0
        verdict = run.guard.observe(found.divergence, steps=most)
        if run.settings.meeting.max_ahead:
            # Ranks do not wait for reductions, so there is no time to win.
            verdict = replace(verdict, calm=False)
        left = run.epochs.free_batches or None
        cadence = run.elche.retune(reduce_ms=found.reduce_ms, verdict=verdict, batches_left=left)
        reasons = cadence.reasons if verdict.kind == "stable" else (verdict.reason, *cadence.reasons)
    run.out.append(Commit(run.version - 1, run.version, found.members, batches, samples, found.late, reasons))
    _after_commit(run, seats, closed, batches, now_ms)


def _after_commit(run: RunState, seats: list[Seat], closed: list[int], batches: int, now_ms: float) -> None:
    every, every_batches = run.settings.save_every, run.settings.save_every_batches
    num_staying = sum(not seat.is_leaving for seat in run.seats.values())
    short = num_staying + len(run.membership.joining) < run.settings.min_ranks
    if closed:
        run.save(seats, f"epoch {closed[-1]} is finished")
    elif short or (every and run.version % every == 0):
        run.save(seats, "too few ranks are left" if short else f"{every} windows since the last one")
    elif every_batches and run.committed // every_batches > (run.committed - batches) // every_batches:
        run.save(seats, f"{run.committed} batches are committed")
    if run.epochs.is_finished:
        run.status = FINISHED
        run.out.append(Finished(run.version, f"all {run.epochs.num_epochs} epochs are committed"))
    elif short:
        run.stop(f"{num_staying} ranks are left, and the run needs {run.settings.min_ranks}")
    else:
        run.release_leaving(seats)
        run.plan(seats, now_ms)
