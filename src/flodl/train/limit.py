"""The limit of a run: every epoch and every evaluation ends after a given number of batches."""

from __future__ import annotations

from flodl.core import TrainError
from flodl.core.integers import is_integer

from .session import Session


def check_limit(session: Session, limit: int | None) -> None:
    """Raise if the limit is not a number of batches, or if the run was trained with a different one."""
    if limit is not None and not is_integer(limit, at_least=1):
        raise TrainError(f"limit={limit!r}. Use a whole number of batches from 1 up, or None for no limit.")
    if session.updates or session.epochs:
        check_same_limit(session.start.limit, limit)


def check_same_limit(before: int | None, now: int | None) -> None:
    """Raise if a run that was trained with one limit would be continued with another."""
    if now != before:
        raise TrainError(
            f"this run was trained with {_text(before)}, and would be continued with {_text(now)}: the "
            "epochs in its history would not have the same size. Use a new Trainer and, for a run that is "
            "saved, a different checkpoint_dir."
        )


def _text(limit: int | None) -> str:
    return "no limit" if limit is None else f"limit={limit}"
