"""The end of a run: the consensus comes back, and all ranks end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flodl.core import DistributedError
from flodl.distributed.ranks import End, Fetch

from .answers import handle
from .outcome import Outcome
from .run import Run

if TYPE_CHECKING:
    from torch import Tensor


def fetch_consensus(run: Run) -> None:
    """Ask a rank that holds the current version for it; if that rank is lost, ask another."""
    deadline_s = time.monotonic() + run.settings.fetch_s
    asked: int | None = None
    while run.consensus is None:
        holders = run.holders()
        left_s = deadline_s - time.monotonic()
        if not holders or left_s <= 0.0:
            return
        if asked not in holders:
            asked = holders[0]
            _send_now(run, asked, Fetch())
        for member, message in run.roster.wait(left_s):
            handle(run, member, message)


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
        text = f"the run cannot continue: {over.reason}."
        if run.failures:
            text += f" The first failure:\n{run.failures[0]}"
        raise DistributedError(text)
    coordinator, found = run.coordinator, run.consensus
    return Outcome(
        over.status,
        over.reason,
        coordinator.version,
        coordinator.committed,
        None if found is None else _to_tensor(found.data, found.dtype),
        None if found is None else found.donated,
        run.ledger.epochs(),
        run.ledger.ranks,
        run.failures,
        coordinator.state(),
    )


def _to_tensor(data: bytes, dtype: str) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)) if data else torch.empty(0)
