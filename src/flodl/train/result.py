"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flodl.core import TrainError, log
from flodl.core.metric_modes import Mode, guess_note, mode_of_metric
from flodl.engine import StepReport
from flodl.observe import unknown_metric

from .ranks.report import RanksReport

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
    # With several devices: the work, idle time and traffic of each rank.
    ranks: RanksReport | None = field(default=None, repr=False)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last epoch."""
        return dict(self.history[-1]) if self.history else {}

    @property
    def skipped(self) -> int:
        """How many of the `steps` updates were skipped because the loss or a gradient was not finite."""
        return 0 if self.report is None else self.report.skipped

    def best(self, metric: str, *, mode: Mode | None = None) -> dict[str, Any]:
        """Return the epoch with the best value of a metric, the first of equal ones; an unknown name raises.

        With mode="max", the highest value is the best. By default that holds for a name such as "accuracy" or
        "eval_f1"; for any other name, the lowest is the best. Without a number in any epoch, it is empty.
        """
        if mode not in (None, "min", "max"):
            raise TrainError(f"best: mode={mode!r}. Use 'min' or 'max'.")
        known = dict.fromkeys(name for row in self.history for name in row)
        if known and metric not in known:
            raise unknown_metric(metric, known)
        rows = [row for row in self.history if metric in row and row[metric] == row[metric]]
        if not rows:
            return {}
        if note := guess_note(f"best({metric!r})", metric, mode):
            log.msg("  %s", note)
        return dict(
            (min if (mode or mode_of_metric(metric)) == "min" else max)(rows, key=lambda row: row[metric])
        )
