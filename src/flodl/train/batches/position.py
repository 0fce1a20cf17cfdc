"""The position of a run within its epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


@dataclass
class Place:
    """Where a run stands within its epoch: batches done, a row that waits for its evaluation, the update at
    which the last row was complete."""

    epoch_step: int = 0
    open_row: dict[str, Any] | None = None
    measured_at: int | None = None
