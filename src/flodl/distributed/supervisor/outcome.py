"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flodl.distributed.coordination import SavePoint
from flodl.distributed.ranks import Failure

from .ledger import RankTotals

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SaveReport:
    """A finished save point: its command, and what `Worker.save` returned."""

    point: SavePoint
    value: Any


@dataclass(slots=True)
class Outcome:
    """How a run ended. `consensus` is flat, in the order of `Worker.state`; None if there is none yet."""

    status: str
    reason: str
    version: int
    committed_batches: int
    consensus: Tensor | None
    # What the worker that sent the consensus would donate to a rank that joins: its optimizer state.
    donated: bytes | None
    # The state of the outer optimizer.
    outer: dict[str, Any]
    # The loss and the metrics of each epoch, over committed work.
    epochs: dict[int, dict[str, float]]
    ranks: dict[int, RankTotals]
    failures: list[Failure]
    # The state of the coordinator, from which `resume_state` continues.
    state: dict[str, Any]
