"""The calling process takes over what the ranks have trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flodl.data import Loader
from flodl.distributed.reduction import FlatState

from ..learning_rate import optimizer_settings
from ..run import Run
from ..session import Session
from .coverage import Ranges, num_batches_in
from .optimizer_state import load_optimizer_state

Sums = dict[str, tuple[float, float]]


@dataclass
class Progress:
    """What is committed: updates over all epochs, and ranges and weighted sums of the current epoch."""

    updates: int
    committed: Ranges
    sums: Sums
    num_skipped: int


def adopt(run: Run, loader: Loader, state: FlatState, saved: Mapping[str, Any], progress: Progress) -> None:
    """Load the weights of a version and the state of the rank that sent them, and count what is committed."""
    session = run.session
    state.write(saved["flat"].to(state.device))
    state.write_integers(saved["integers"].to(state.device))
    load_optimizer_state(session.optimizer, saved["optimizer"])
    size = loader.batch_size
    assert size is not None
    batches = num_batches_in(progress.committed, size)
    _count(session, saved["scaler"], progress, batches)
    session.position.epoch_step = batches
    session.position.ranks = {
        "committed": [list(each) for each in progress.committed],
        "outer": {name: tensor.cpu() for name, tensor in saved["outer"].items()},
    }
    trained = sum(stop - start for start, stop in progress.committed)
    loader.load_state_dict({**loader.state_dict(), "position": trained})
    run.cursor.forget()


def _count(session: Session, scaler: Any, progress: Progress, batches: int) -> None:
    step = session.train_step
    before = step.state_dict()
    schedule = before["schedule"]
    step.load_state_dict(
        {
            **before,
            "steps": before["steps"] + max(0, batches - session.position.epoch_step),
            "updates": progress.updates,
            "num_skipped": progress.num_skipped,
            "means": [[[name], [weight, total]] for name, (total, weight) in progress.sums.items()],
            "scaler": scaler,
            "schedule": None if schedule is None else {**schedule, "step": progress.updates},
        }
    )
    session.updates_seen = progress.updates
    if session.skipped is not None:
        session.skipped.forget(progress.updates)


def sums_of(session: Session) -> Sums:
    """Return the weighted sums of the current epoch, which a resumed run continues."""
    found: Sums = {}
    for names, (weight, *sums) in session.train_step.state_dict()["means"]:
        for name, value in zip(names, sums):
            known = found.get(name, (0.0, 0.0))
            found[name] = (known[0] + value, known[1] + weight)
    return found


def settings_for_ranks(session: Session, modes: Any) -> dict[str, Any]:
    """Return what hooks may change between two epochs, as plain data."""
    schedule = session.train_step.schedule
    kept = ("fused", "foreach", "capturable")
    groups = [
        {name: value for name, value in group.items() if name not in kept and not isinstance(value, Tensor)}
        for group in optimizer_settings(session.optimizer)
    ]
    return {
        "groups": groups,
        "schedule": None if schedule is None else schedule.state_dict(),
        "modes": modes,
    }
