"""The position of a run within its epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Position:
    """Batches done in this epoch, the metrics of a trained epoch that awaits its evaluation, and the update
    at which the last row of the history was complete."""

    epoch_step: int = 0
    open_row: dict[str, Any] | None = None
    measured_at: int | None = None
