"""A loss with which an accumulation window does not equal one large batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..evaluation.pieces import Pieces
from ..ranks.notes import NOT_A_MEAN, other_denominators


def differs_from_large_batch(
    model: nn.Module,
    step_fn: Callable[..., Any],
    accumulate: int,
    compare: Callable[[], Pieces | None] = lambda: None,
) -> str:
    """Return why the update of a window is not that of one large batch, where that can be seen, or "".

    `compare` returns the loss of a batch and of its pieces. It is called if nothing is known about the loss.
    A training step reports sums itself.

    >>> pieces = Pieces({"loss": 3.5}, [{"loss": 2.0}, {"loss": 4.0}], [0.5, 0.5])
    >>> differs_from_large_batch(nn.Linear(1, 1), lambda m, x: m(x).mean(), 4, lambda: pieces)[:54]
    'accumulate=4: the loss of a batch is not the mean of i'
    """
    what = next(other_denominators(model, step_fn), "")
    if not what:
        pieces = compare()
        if pieces is None or pieces.is_mean("loss") or pieces.is_sum("loss"):
            return ""
        what = NOT_A_MEAN
    return (
        f"accumulate={accumulate}: {what}, and micro-batches are weighted by samples, so an update differs "
        "from that of one large batch if samples count differently. For the same update, return the sum "
        "of the losses divided by the number of samples"
    )
