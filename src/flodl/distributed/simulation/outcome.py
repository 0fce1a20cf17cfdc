"""What a simulated run achieved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """Batches over time. `possible_batches` is what the present ranks could train without any waiting."""

    status: str
    duration_ms: float
    committed_batches: int
    possible_batches: float
    num_windows: int
    num_losses: int
    num_joins: int
    num_generations: int
    num_repeated: int
    num_late: int
    anchor: int
    window_ms: float
    reasons: tuple[str, ...] = ()

    @property
    def goodput(self) -> float:
        """Committed batches over those that the present ranks could have trained."""
        return self.committed_batches / self.possible_batches if self.possible_batches else 0.0
