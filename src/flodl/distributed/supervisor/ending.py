"""The end of a run: the consensus comes back, and all ranks end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flodl.core import DistributedError, log
from flodl.distributed.coordination import NO_HOLDER
from flodl.distributed.ranks import End, Fetch

from .answers import handle
from .outcome import Outcome
from .run import Over, Run

if TYPE_CHECKING:
    from torch import Tensor


def fetch_consensus(run: Run) -> None:
    """Ask a rank that holds the current version for it; if it is lost or does not answer, ask another."""
    patience_s = run.settings.fetch_s / max(1, len(run.holders()))
    asked: set[int] = set()
    deadline_s = 0.0
    while run.consensus is None:
        holders = run.holders()
        fresh = [rank for rank in holders if rank not in asked]
        is_late = time.monotonic() >= deadline_s
        if is_late and not fresh:
            break
        if fresh and (is_late or not asked.intersection(holders)):
            asked.add(fresh[0])
            _send_now(run, fresh[0], Fetch())
            deadline_s = time.monotonic() + patience_s
        for member, message in run.roster.wait(max(0.0, deadline_s - time.monotonic())):
            handle(run, member, message)
    if run.consensus is None and run.coordinator.version > 0:
        log.warn("no rank sent the consensus of version %d.", run.coordinator.version)


def end_ranks(run: Run) -> None:
    """Let all ranks end; those that do not in time are ended."""
    assert run.over is not None
    for member in run.roster:
        _send_now(run, member.rank, End(run.over.reason))
    deadline_s = time.monotonic() + run.settings.end_s
    while len(run.roster) and time.monotonic() < deadline_s:
        for member, message in run.roster.wait(max(0.0, deadline_s - time.monotonic())):
            handle(run, member, message)


def _send_now(run: Run, rank: int, message: object) -> None:
    member = run.roster.get(rank)
    if member is not None:
        member.held = None
        run.roster.send(rank, message)


def make_outcome(run: Run) -> Outcome:
    """Return the outcome, or raise an error with the first failure."""
    over = run.over
    assert over is not None
    if over.is_error:
        raise DistributedError(_why_over(run, over))
    coordinator, found = run.coordinator, run.consensus
    return Outcome(
        over.status,
        over.reason,
        coordinator.version,
        coordinator.committed,
        None if found is None else _to_tensor(found.data, found.dtype),
        None if found is None else found.donated,
        {} if found is None else found.outer,
        run.ledger.epochs(),
        run.ledger.ranks,
        run.failures,
        coordinator.state(),
    )


def _why_over(run: Run, over: Over) -> str:
    """Return why the run cannot continue: the error of a rank, if that is why no rank is left."""
    text = f"the run cannot continue: {over.reason}."
    if not run.failures:
        return text
    first = run.failures[0]
    if over.reason.startswith(NO_HOLDER):
        failed = sorted({each.rank for each in run.failures})
        line = f" ({first.line})" if first.line else ""
        ranks = f"ranks {', '.join(map(str, failed))}" if len(failed) > 1 else f"rank {failed[0]}"
        text = f"{first.error}{line}, on {ranks}, and no rank is left."
    if first.traceback in run.shown_tracebacks:
        return f"{text} The first failure, with the traceback shown above:\n{first.first_line}"
    return f"{text} The first failure:\n{first}"


def _to_tensor(data: bytes, dtype: str) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)) if data else torch.empty(0)
