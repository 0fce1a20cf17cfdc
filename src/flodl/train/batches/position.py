"""The position of a run within its epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass
class Position:
    """Batches done in this epoch, the metrics of a trained epoch that awaits its evaluation, and the update
    at which the last row of the history was complete; the seconds that earlier starts spent in this epoch.

    After training on several devices, `ranks` has the committed ranges of this epoch and the state of the
    outer optimizer; a bundle has it as a part of its own.
    """

    epoch_step: int = 0
    open_row: dict[str, Any] | None = None
    measured_at: int | None = None
    spent_s: float = 0.0
    ranks: dict[str, Any] | None = None

    def saved(self) -> dict[str, Any]:
        """Return everything but `ranks`, as plain data."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ranks"}
