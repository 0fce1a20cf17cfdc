"""What a search knows about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """A run so far: its values, and its result once it has finished with one."""

    values: dict[str, Any]
    result: float | None = None
    is_running: bool = False
