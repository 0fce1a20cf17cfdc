"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flodl.engine import StepReport

Status = Literal["finished", "stopped"]


@dataclass(frozen=True)
class FitResult:
    """The history (a dict of metrics for each epoch), the folder of the run, and the report of its step.

    >>> FitResult([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.7}], steps=20).best("loss")
    {'epoch': 1, 'loss': 0.5}
    """

    history: list[dict[str, Any]]
    steps: int
    status: Status = "finished"
    reason: str = ""
    run_dir: Path | None = None
    report: StepReport | None = field(default=None, repr=False)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last epoch."""
        return dict(self.history[-1]) if self.history else {}

    def best(self, metric: str, *, mode: Literal["min", "max"] = "min") -> dict[str, Any]:
        """Return the epoch with the best value of a metric, the first of equal ones."""
        rows = [row for row in self.history if metric in row and row[metric] == row[metric]]
        if not rows:
            return {}
        return dict((min if mode == "min" else max)(rows, key=lambda row: row[metric]))
