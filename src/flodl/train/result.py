"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flodl.checkpoint.bundles.measured import values_alike
from flodl.core import TrainError, log
from flodl.core.best_values import best_position
from flodl.core.metric_modes import Mode, guess_note, mode_of_metric
from flodl.core.paths import suggestion
from flodl.engine import StepReport
from flodl.observe import unknown_metric

from .checks.calls import UnknownAttributeError
from .evaluation.metrics import components_of
from .ranks.report import RanksReport

Status = Literal["finished", "stopped"]

# Names that other frameworks use, and what to write here.
_INSTEAD = {
    **dict.fromkeys(("epochs", "epoch", "num_epochs"), "The number of epochs is len(result.history)."),
    **dict.fromkeys(("global_step", "updates"), "The number of updates is result.steps."),
    **dict.fromkeys(
        ("best_metric", "best_score", "best_epoch", "best_model_score", "best_loss"),
        "The row of the best epoch is result.best('eval_loss').",
    ),
    **dict.fromkeys(("training_loss", "losses"), "The losses are [row['loss'] for row in result.history]."),
    **dict.fromkeys(
        ("best_model_path", "checkpoint", "best_checkpoint", "best_model"),
        "Call trainer.restore_best() for the best weights; the bundles are in result.run_dir.",
    ),
    "model": "The model that was passed to the Trainer is trained in place: trainer.model.",
}


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
    # Metrics of the last evaluation for each class, and matrices: {name: {"labels": […], "values": […]}}.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    # Whether lower or higher is better, for metrics whose objects tell it.
    modes: dict[str, Mode] = field(default_factory=dict, repr=False)
    # The number of epochs before the evaluation data last changed, whose values are not comparable.
    evaluated_since: int = field(default=0, repr=False)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last epoch."""
        return dict(self.history[-1]) if self.history else {}

    @property
    def skipped(self) -> int:
        """How many of the `steps` updates were skipped because the loss or a gradient was not finite."""
        return 0 if self.report is None else self.report.skipped

    # Not for type checkers, to which every name would be one.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"the result of a run has no attribute {name!r}."
            if name.startswith("_"):
                raise AttributeError(message, name=name, obj=self)
            raise UnknownAttributeError(f"{message} {self._hint(name)}")

    def _hint(self, name: str) -> str:
        if name in _INSTEAD:
            return _INSTEAD[name]
        if "history" in vars(self) and name in self.metrics:
            return f"It is a metric of an epoch: result.metrics[{name!r}] is that of the last one."
        known = [one for one in dir(self) if not one.startswith("_")]
        return suggestion(name, known, known_as="attributes")

    def best(self, metric: str, *, mode: Mode | None = None) -> dict[str, Any]:
        """Return the epoch with the best value of a metric, the first of equal ones; an unknown name raises.

        With mode="max", the highest value is the best. By default that holds for the metrics of flodl, such
        as `ClassF1`, and for a name such as "accuracy" or "eval_f1"; for any other name, the lowest is the
        best. Values that differ by less than a millionth of their size are equal. Without a number in any
        epoch, the result is empty. If the run was resumed with other evaluation data, only epochs that were
        evaluated on the newest data count for the metrics of an evaluation.
        """
        if mode not in (None, "min", "max"):
            raise TrainError(f"best: mode={mode!r}. Use 'min' or 'max'.")
        known = dict.fromkeys(name for row in self.history for name in row)
        if known and metric not in known:
            raise unknown_metric(metric, known)
        history = values_alike(self.history, metric, self.evaluated_since)
        rows = [row for row in history if metric in row and row[metric] == row[metric]]
        if not rows:
            return {}
        mode = mode or self.modes.get(metric)
        if note := guess_note(f"best({metric!r})", self._judged_by(metric), mode):
            log.msg("  %s", note)
        mode = mode or mode_of_metric(self._judged_by(metric))
        position = best_position((row[metric] for row in rows), mode)
        return dict(rows[position or 0])

    def _judged_by(self, metric: str) -> str:
        """Return the name that tells the direction: for a number of one class, that of its metric."""
        return next(
            (name for name, table in self.tables.items() if metric in components_of({name: table})), metric
        )
