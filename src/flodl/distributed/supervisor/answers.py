"""What happens when a rank sends something, or ends."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flodl.core import log
from flodl.core.formats import counted
from flodl.distributed.coordination import Arrived, Failed, Joined, Lost, Reduced
from flodl.distributed.ranks import Adopted, Beat, Consensus, Donation, Failure, Report, Saved

from .orders import carry_out, finish_transfer, forget
from .outcome import SaveReport
from .roster import Gone, Member
from .run import Run


def handle(run: Run, member: Member, message: Any) -> None:
    """Handle a message of a rank. What a rank sent before it was evicted does not count."""
    if member.is_evicted:
        return
    _ANSWERS[type(message)](run, member, message)
    carry_out(run)


def _report(run: Run, member: Member, report: Report) -> None:
    event, extras = report.event, report.extras
    if run.over is not None:
        return
    if isinstance(event, Joined):
        run.roster.join(member)
        if run.told is not None:
            run.roster.send(member.rank, run.told)
        run.note("joined", rank=event.rank, pid=member.process.pid, host=member.process.host)
    elif isinstance(event, Arrived):
        run.ledger.arrive(event, extras.get("metrics", {}))
        averaging = extras.get("averaging", {})
        run.ledger.averaged(event.rank, averaging)
        run.note(
            "arrived", rank=event.rank, plan=event.plan, steps=event.steps, compute_ms=event.compute_ms,
            delivered_ms=event.delivered_ms, fill_ms=event.fill_ms, wait_ms=event.wait_ms,
            took_ms=extras.get("took_ms"), loss=event.loss, **({"averaging": averaging} if averaging else {}),
        )  # fmt: skip
    elif isinstance(event, Reduced):
        run.ledger.reduced(event, extras)
        if (link := extras.get("link")) is not None:
            _note_link(run, member, *link)
        facts = {name: value for name, value in extras.items() if name != "link"}
        run.note("reduced", rank=member.rank, window=event.window, divergence=event.divergence, **facts)
        # The time of the whole reduction: forming a group and reports are part of it.
        event = replace(event, reduce_ms=max(0.0, run.clock.now_ms() - run.coordinator.run.closed_ms))
    elif isinstance(event, Failed):
        run.note("reduce_failed", rank=event.rank, window=event.window, reason=event.reason)
    run.tell(event)


def _note_link(run: Run, member: Member, backend: str, reason: str) -> None:
    if backend == "none":
        return
    run.note("link", rank=member.rank, backend=backend, reason=reason)
    log.verbose("rank %d averages over %s: %s", member.rank, backend, reason)


def _beat(run: Run, member: Member, message: Beat) -> None:
    run.hearing.advance(member.rank, message.progress)
    run.log.pass_on("beat", rank=member.rank)


def _adopted(run: Run, member: Member, message: Adopted) -> None:
    run.note("adopted", rank=message.rank, version=message.version, digest=message.digest)


def _saved(run: Run, member: Member, message: Saved) -> None:
    saving = run.saving
    if saving is None or saving.writer != member.rank or saving.message.point.version != message.version:
        return
    run.saving = None
    if run.journal is not None:
        run.journal.confirm()
    run.note("saved", version=message.version, writer=member.rank)
    if run.callbacks.on_save is not None:
        report = SaveReport(saving.message.point, pickle.loads(message.value))
        if run.callbacks.on_save(report) is True:
            run.end("stopped", f"on_save asked for it at version {message.version}")
    # An evaluation in the callback may take minutes, in which ranks cannot be late.
    run.clock.resume("saving")


def _donation(run: Run, member: Member, message: Donation) -> None:
    transfer = run.transfers.get(message.to)
    if transfer is not None and transfer.donor == member.rank:
        finish_transfer(run, message.to, message.data)


def _consensus(run: Run, member: Member, message: Consensus) -> None:
    run.consensus = message


def _failure(run: Run, member: Member, message: Failure) -> None:
    run.failures.append(message)
    run.note(
        "failure", rank=message.rank, host=message.host, pid=message.pid, step=message.step,
        doing=message.doing, error=message.error, traceback=message.traceback,
    )  # fmt: skip


def _gone(run: Run, member: Member, message: Gone) -> None:
    failure = next((each for each in run.failures if each.rank == member.rank), None)
    reason = message.reason if failure is None else f"it failed {failure.doing}: {failure.error}"
    run.note("ended" if member.is_leaving or run.over else "lost", rank=member.rank, reason=reason)
    if member.is_leaving or run.over is not None:
        return
    lose(run, member, reason)
    if run.over is None:
        what = f"rank {member.rank} is lost: {reason}" if failure is None else str(failure)
        if failure is not None:
            run.shown_tracebacks.add(failure.traceback)
        run.warn(f"{what}\nThe run continues with {counted(len(run.roster), 'rank')}.")


def lose(run: Run, member: Member, reason: str) -> None:
    """Report a rank as lost, and free those that wait for it in a reduction, of weights or of gradients."""
    from flodl.distributed.reduction import cancel, gradient_store

    found = run.coordinator.run.round
    if found is not None and member.rank in found.members and len(found.members) > 1:
        cancel(run.store, found.generation)
    cancel(gradient_store(run.store), run.coordinator.run.membership.generation)
    if member.has_joined:
        run.tell(Lost(member.rank, reason))
    forget(run, member.rank)
    carry_out(run)
    num, needed = len(run.roster), run.coordinator.run.settings.start_ranks
    has_failed = any(failure.rank == member.rank for failure in run.failures)
    if run.coordinator.status == "waiting" and num < needed and (has_failed or not run.may_wait):
        run.end(
            "stopped",
            f"{counted(num, 'rank')} {'is' if num == 1 else 'are'} left before the start, and the run needs "
            f"{needed}. "
            f"Rank {member.rank}: {reason}",
            is_error=True,
        )


_ANSWERS: dict[type, Callable[[Run, Member, Any], None]] = {
    Report: _report,
    Beat: _beat,
    Adopted: _adopted,
    Saved: _saved,
    Donation: _donation,
    Consensus: _consensus,
    Failure: _failure,
    Gone: _gone,
}
