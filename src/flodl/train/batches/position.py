"""The position of a run within its epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass
class Position:
    """Where a run is within an epoch."""

    # The batches done in this epoch.
    epoch_step: int = 0
    # The metrics of a trained epoch that awaits its evaluation.
    open_row: dict[str, Any] | None = None
    # The update at which the last row of the history was complete.
    measured_at: int | None = None
    # The seconds that earlier starts spent in this epoch.
    spent_s: float = 0.0
    # After training on several devices, the committed ranges of this epoch and the state of the outer
    # optimizer; a bundle has them as a part of its own.
    ranks: dict[str, Any] | None = None

    def saved(self) -> dict[str, Any]:
        """Return everything but `ranks`, as plain data."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ranks"}
