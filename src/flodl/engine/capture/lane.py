"""The fast path of a recorded step: a replay after a few checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..program.outcome import Outcome
from .dependencies import Dependencies
from .recording import Recording
from .static_state import StaticState
from .stored_values import StoredValues

# The fast path of a whole step: returns the loss, or None if the step has to take the slow path.
Lane = Callable[[tuple[Any, ...]], Tensor | None]


def fast_lane(
    recording: Recording[Outcome],
    stored: StoredValues,
    dependencies: Dependencies,
    turns: int,
    state: StaticState | None = None,
) -> Lane | None:
    """Return the fast path over one recording of a whole step; None if the check is not that simple.

    If anything differs, the fast path returns None and has changed nothing. In most steps this is all that
    the host does.
    """
    may_replay = dependencies.fast_check(recording, turns)
    if may_replay is None:
        return None
    if recording.mailbox is None:
        post = _copied_loss(recording)
    else:
        post = recording.mailbox.poster(recording.run)
    shown, fed_back = stored.pairs, state.pairs if state is not None else []
    if not shown and not fed_back:
        return lambda batch: post(batch) if may_replay(batch) else None

    def replay(batch: tuple[Any, ...]) -> Tensor | None:
        # A call of the model in between, such as an evaluation, has stored its own values.
        for holder, values in shown:
            if holder.values is not values:
                return None
        # And nothing else has reset, loaded or continued what is carried.
        for carrier, carried in fed_back:
            if carrier.carried is not carried:
                return None
        return post(batch) if may_replay(batch) else None

    return replay


def _copied_loss(recording: Recording[Outcome]) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda batch: recording.replay(batch).loss.clone()
