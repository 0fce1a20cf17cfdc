"""Carrying out what the coordinator asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flodl.distributed.coordination import (
    Command,
    Commit,
    Evict,
    Finished,
    Plan,
    Rebuild,
    Reduce,
    Refuse,
    Release,
    Stop,
)
from flodl.distributed.ranks import Donate, End, Packed, Receive, Save

from .run import Run, Saving, Transfer

NO_VERSION = -1


def carry_out(run: Run) -> None:
    """Carry out commands in their order, up to a save point that is not finished."""
    while run.pending and run.saving is None and run.over is None:
        command = run.pending.popleft()
        _ORDERS[type(command)](run, command)


def _rebuild(run: Run, command: Rebuild) -> None:
    """Members receive their generation with the next reduction, which forms the group."""
    run.note("generation", generation=command.generation, members=command.members, reason=command.reason)


def _plan(run: Run, command: Plan) -> None:
    for plan, lease in zip(command.plans, command.leases):
        run.note(
            "plan", rank=lease.rank, window=command.window, plan=plan, epoch=lease.epoch,
            batches=lease.batches, ranges=lease.ranges, reason=command.reason,
        )  # fmt: skip
    # Only ranks that train batches together need to know the leases of all.
    team = command.leases if run.coordinator.run.settings.shared else ()
    for plan, lease, position in zip(command.plans, command.leases, command.positions):
        own = Plan(command.window, command.generation, (plan,), (lease,), (position,), command.reason, team)
        run.roster.send(lease.rank, own)


def _reduce(run: Run, command: Reduce) -> None:
    run.note(
        "reduce", window=command.window, generation=command.generation, attempt=command.attempt,
        members=command.members, weights=command.weights, bases=command.bases, donor=command.donor,
        scale=command.scale, reason=command.reason,
    )  # fmt: skip
    run.receivers = {rank for rank, base in zip(command.members, command.bases) if base == NO_VERSION}
    packed = Packed(command)
    for rank in command.members:
        run.roster.send(rank, packed)


def _commit(run: Run, command: Commit) -> None:
    is_first = not any(member.holds is not None for member in run.roster)
    report = run.ledger.commit(command, run.coordinator.committed)
    run.note(
        "commit", window=command.window, version=command.version, members=command.members,
        batches=command.batches, samples=command.samples, late=command.late, reasons=command.reasons,
        loss=report.loss, metrics=report.metrics, work=report.work,
    )  # fmt: skip
    packed = Packed(command)
    for rank in command.members:
        member = run.roster.get(rank)
        if member is not None:
            member.holds = command.version
            run.roster.send(rank, packed)
    if not is_first:
        # All ranks of the first window start with the same optimizer state.
        for rank in sorted(run.receivers):
            start_transfer(run, rank)
    if run.callbacks.on_commit is not None:
        run.callbacks.on_commit(report)


def start_transfer(run: Run, rank: int) -> None:
    """Ask a donor for its optimizer state; until it is here, the receiver gets no other message."""
    receiver = run.roster.get(rank)
    if receiver is None:
        return
    if receiver.held is None:
        receiver.held = []
    waiting = {*run.transfers, *run.receivers}
    donors = [each for each in run.holders() if each not in waiting]
    if not donors:
        finish_transfer(run, rank, None, "no rank could donate its optimizer state")
        return
    run.clock.pause(f"transfer to {rank}")
    run.transfers[rank] = Transfer(donors[0], time.monotonic() + run.settings.donate_s)
    run.roster.send(donors[0], Donate(rank))


def finish_transfer(run: Run, rank: int, data: bytes | None, note: str = "") -> None:
    transfer = run.transfers.pop(rank, None)
    run.receivers.discard(rank)
    donor = None if transfer is None or data is None else transfer.donor
    run.note("transfer", rank=rank, donor=donor, num_bytes=len(data or b""), reason=note)
    run.roster.release(rank, Receive(data))
    run.clock.resume(f"transfer to {rank}")


def _save(run: Run, message: Save) -> None:
    """Ask the writer to save; another holder of the version takes its place if it is lost."""
    holders = run.holders()
    if not holders:
        run.note("save_lost", version=message.point.version, reason="no rank that holds it is left")
        return
    writer = message.point.writer if message.point.writer in holders else holders[0]
    run.clock.pause("saving")
    run.saving = Saving(message, writer, time.monotonic() + run.settings.save_s)
    run.note("save", version=message.point.version, writer=writer, reason=message.point.reason)
    run.roster.send(writer, message)


def _evict(run: Run, command: Evict) -> None:
    member = run.roster.get(command.rank)
    run.warn(f"rank {command.rank} is ended: {command.reason}.")
    run.note("evict", rank=command.rank, reason=command.reason)
    if member is not None:
        member.is_evicted = True
        run.roster.remove(member)
        forget(run, command.rank)


def forget(run: Run, rank: int) -> None:
    """Replace a rank that is gone in saves and transfers."""
    run.hearing.forget(rank)
    run.ledger.forget(rank)
    if rank in run.transfers:
        finish_transfer(run, rank, None, "it is gone")
    for receiver, transfer in list(run.transfers.items()):
        if transfer.donor == rank:
            del run.transfers[receiver]
            start_transfer(run, receiver)
    if run.saving is not None and run.saving.writer == rank:
        message, run.saving = run.saving.message, None
        run.clock.resume("saving")
        run.pending.appendleft(message)


def _refuse(run: Run, command: Refuse) -> None:
    run.warn(f"{command.reason}.")
    run.note("refuse", rank=command.rank, reason=command.reason)
    run.ledger.forget(command.rank)
    run.roster.send(command.rank, command)


def _release(run: Run, command: Release) -> None:
    run.note("release", rank=command.rank, reason=command.reason)
    member = run.roster.get(command.rank)
    if member is not None:
        member.is_leaving = True
        run.roster.send(command.rank, End(command.reason))


def _finished(run: Run, command: Finished) -> None:
    run.note("finished", version=command.version, reason=command.reason)
    run.end("finished", command.reason)


def _stop(run: Run, command: Stop) -> None:
    run.note("stop", reason=command.reason)
    run.end("stopped", command.reason, is_error=True)


_ORDERS: dict[type[Command | Save], Callable[[Run, Any], None]] = {
    Rebuild: _rebuild,
    Plan: _plan,
    Reduce: _reduce,
    Commit: _commit,
    Save: _save,
    Evict: _evict,
    Refuse: _refuse,
    Release: _release,
    Finished: _finished,
    Stop: _stop,
}
