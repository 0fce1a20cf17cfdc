"""The callbacks that come with flodl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from flodl.core import TrainError
from flodl.core.formats import a_type, counted
from flodl.core.integers import as_integer, is_integer, is_number
from flodl.core.metric_modes import Mode, guess_note, mode_of_metric
from flodl.core.usage.calls import explain_creation
from flodl.graph import Graph

from ..checks.calls import WrongCallError
from .hooks import TrainerControls
from .patience import Added, Patience, is_awaited, is_evaluated, metric_of

# Settings that are read only when a callback is created.
_KEPT = ("patience", "mode", "tol")


class MetricWatcher:
    """Watch one metric with patience; the patience is saved with the run."""

    def __init__(self, metric: str, patience: int, mode: Mode | None, tol: float) -> None:
        who = type(self).__name__
        if not isinstance(metric, str):
            raise TrainError(f"{who}({metric!r}). Pass the name of a metric, for example {who}('eval_loss').")
        self._mode_is_given = mode is not None
        # Whether the name decided that higher values are better.
        self.mode_is_inferred = mode is None and mode_of_metric(metric) == "max"
        self._guess = guess_note(f"{who}({metric!r})", metric, mode)
        mode = mode_of_metric(metric) if mode is None else mode
        self.metric, self._patience = metric, Patience(who, patience, mode, tol)
        # Whether another hook adds the metric, perhaps in some epochs only.
        self.added: Added = "never"
        # Why the state of a resumed run was not taken over, or "".
        self.restart = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _KEPT or (name in _ELSEWHERE and type(self).__module__.startswith("flodl.")):
            who = type(self).__name__
            advice = _ELSEWHERE.get(name) or f"Create a new {who}(…, {name}=…)."
            raise TrainError(
                f"{name} of {self!r} was assigned, but it keeps what it was created with: the new "
                f"value would be ignored. {advice}"
            )
        super().__setattr__(name, value)

    def adopt_modes(self, modes: Mapping[str, Mode]) -> None:
        """Take the direction of the metric from those that a trainer knows, unless it was given."""
        if self.metric in modes and not self._mode_is_given:
            self._patience.mode, self.mode_is_inferred, self._guess = modes[self.metric], False, ""

    def on_start(self, trainer: TrainerControls) -> None:
        """Start from scratch if nothing has been trained yet: the callback may have watched another run."""
        if trainer.updates == trainer.epochs == 0:
            self._patience.reset()

    # A custom loop may never call on_start.
    on_epoch_start = on_start

    @property
    def watches(self) -> tuple[str, ...]:
        """The metric it needs, which is checked before anything is trained."""
        return (self.metric,)

    def __repr__(self) -> str:
        rule = self._patience
        settings = f"patience={rule.epochs}, mode={rule.mode!r}, tol={rule.tol}{self._more_settings()}"
        return f"{type(self).__name__}({self.metric!r}, {settings})"

    def _more_settings(self) -> str:
        return ""

    @property
    def mode_note(self) -> str:
        """What was decided by the name of the metric, or ""."""
        is_told = f"{type(self).__name__}({self.metric!r}): higher is better, judging by the name"
        return f"{is_told}; mode='min' changes it" if self.mode_is_inferred else self._guess

    @property
    def mode(self) -> Mode:
        """Whether lower or higher is better."""
        return self._patience.mode

    def value_in(self, metrics: Mapping[str, float], trainer: TrainerControls) -> float | None:
        """Return the watched metric, or raise an error that lists the existing names.

        A loop may evaluate some epochs only, and a hook may add a metric to some; the others have no value
        and do not count.
        """
        if self.metric not in metrics:
            not_evaluated = is_evaluated(self.metric) and not any(map(is_evaluated, metrics))
            if not_evaluated or any(self.metric in row for row in trainer.history):
                return None
            if is_awaited(self.metric, metrics, self.added):
                return None
        return metric_of(metrics, self.metric, self._patience.who)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {**self._patience.state_dict(), "metric": self.metric, "mode": self.mode}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; one of another metric or direction is not comparable, and is left out."""
        self._patience.load_state_dict(state)
        # Older bundles have neither.
        metric, mode = state.get("metric", self.metric), state.get("mode", self.mode)
        self.restart = ""
        if (metric, mode) != (self.metric, self.mode):
            self._patience.reset()
            before = repr(metric) if metric != self.metric else f"mode={mode!r}"
            self.restart = f"{type(self).__name__}({self.metric!r}, mode={self.mode!r}) starts from scratch: "
            self.restart += f"the saved best value is for {before}"

    def begin_again(self, why: str) -> bool:
        """Start from scratch, and note why; return whether there was a best value to forget."""
        if self._patience.best is None:
            return False
        self._patience.reset()
        self.restart = f"{type(self).__name__}({self.metric!r}) starts from scratch: {why}"
        return True


# Names that other frameworks use, and what to write here.
_ELSEWHERE = {
    "monitor": "Pass the name of the metric first, for example 'eval_loss'.",
    **dict.fromkeys(("min_delta", "threshold"), "Write tol=…."),
    "min_lr": "Write least=….",
    "restore_best_weights": "Write Trainer(…, checkpoint_dir=…, keep=best('eval_loss')), and call "
    "trainer.restore_best() after fit.",
    **dict.fromkeys(("unfreeze", "train"), "Write thaw=[…]."),
}


@explain_creation(
    WrongCallError, elsewhere=_ELSEWHERE, example="Write EarlyStopping('eval_loss', patience=3)."
)
class EarlyStopping(MetricWatcher):
    """Stop when a metric has not improved by more than `tol` for `patience` epochs that have it.

    Values that differ by less than a millionth of their size are equal: the mean of the same results, added
    up in another order, is rounded differently.
    With mode="max", higher is better. By default that holds for a name such as "eval_accuracy" or "f1", and
    the run says so; for any other name, lower is better. A stopped run stays stopped when it is started
    again. A run that starts from the folder of another one counts from scratch.

    >>> stopping = EarlyStopping("eval_loss", patience=2)
    >>> [stopping.is_over(value) for value in [1.0, 0.5, 0.6, 0.55]]
    [False, False, False, True]
    """

    def __init__(
        self, metric: str = "eval_loss", *, patience: int = 3, mode: Mode | None = None, tol: float = 0.0
    ) -> None:
        super().__init__(metric, patience, mode, tol)

    def is_over(self, value: float) -> bool:
        """Add the metric of an epoch, and return whether it is time to stop."""
        return self._patience.is_over(value)

    def on_epoch_end(self, trainer: TrainerControls, metrics: Mapping[str, float]) -> None:
        """Check the metric of the epoch."""
        value = self.value_in(metrics, trainer)
        if value is not None and self.is_over(value):
            trainer.stop(self._reason)

    def on_resume(self, trainer: TrainerControls, own_folder: bool) -> None:
        """Stay stopped if the run had been stopped; count from scratch if it started from another run."""
        if not own_folder:
            self._patience.reset()
        elif self._patience.is_exhausted:
            trainer.stop(self._reason)

    @property
    def already_stopped(self) -> str:
        """How to train on after this callback has stopped the run, or "" if it has not."""
        if not self._patience.is_exhausted:
            return ""
        return f"remove EarlyStopping({self.metric!r}) or give it a patience above {self._patience.waited}"

    @property
    def _reason(self) -> str:
        best = self._patience.best
        known = "never a number" if best is None else f"best {best:g}"
        if self.mode_note:
            known += f"; {'lower' if self.mode == 'min' else 'higher'} is better"
        return f"{self.metric} has not improved for {counted(self._patience.waited, 'epoch')} ({known})"


@explain_creation(WrongCallError, elsewhere=_ELSEWHERE, example="Write ReduceOnPlateau('loss', factor=0.1).")
class ReduceOnPlateau(MetricWatcher):
    """Multiply the learning rate by `factor` when a metric has not improved for `patience` epochs.

    As for `EarlyStopping`, a metric improves if it is better than the best so far by more than `tol` and by
    more than rounding: lower or, with mode="max" or a name such as "eval_accuracy", higher. One that gets
    worse, oscillates or is NaN does not improve. The count starts again after each reduction, and the rate
    does not go below `least`.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        factor: float = 0.1,
        patience: int = 3,
        mode: Mode | None = None,
        tol: float = 1e-4,
        least: float = 0.0,
    ) -> None:
        if not is_number(factor) or not 0 < factor < 1:
            raise TrainError(f"ReduceOnPlateau: factor={factor!r}. Use a number between 0 and 1.")
        if not is_number(least) or not 0 <= least < math.inf:
            raise TrainError(
                f"ReduceOnPlateau: least={least!r}. Use the lowest learning rate, a number of at least 0."
            )
        super().__init__(metric, patience, mode, tol)
        self.factor, self.least = factor, least

    def _more_settings(self) -> str:
        return f", factor={self.factor}, least={self.least}"

    def on_epoch_end(self, trainer: TrainerControls, metrics: Mapping[str, float]) -> None:
        """Check the metric of the epoch."""
        value = self.value_in(metrics, trainer)
        if value is not None and self._patience.is_over(value):
            self._patience.waited = 0
            trainer.scale_lr(self.factor, least=self.least)


@explain_creation(WrongCallError, elsewhere=_ELSEWHERE, example="Write Phase(3, thaw=['encoder']).")
class Phase:
    """Freeze and thaw parts of a graph by path at the start of an epoch, counted from 0.

    `Phase(0, freeze=["encoder"])` and `Phase(3, thaw=["encoder"])` train the rest for three epochs first.
    With `eval_mode`, the frozen parts also stay in evaluation mode (dropout, batch norm). All of it is saved
    with the run, so a resumed run need not repeat the epoch.
    """

    def __init__(
        self, epoch: int, *, freeze: Iterable[str] = (), thaw: Iterable[str] = (), eval_mode: bool = False
    ) -> None:
        if isinstance(freeze, str) or isinstance(thaw, str):
            raise TrainError("Phase: pass lists of paths, for example thaw=['encoder'].")
        epoch = as_integer(epoch)
        if not is_integer(epoch, at_least=0):
            raise TrainError(f"Phase({epoch!r}). Pass the epoch, an integer counted from 0.")
        self.epoch, self.freeze, self.thaw, self.eval_mode = epoch, tuple(freeze), tuple(thaw), eval_mode
        if both := [path for path in self.freeze if path in self.thaw]:
            raise TrainError(
                f"Phase({epoch}) freezes and thaws {both[0]!r} in the same epoch. Leave one of the two out, "
                "or write two phases: Phase(0, freeze=…), Phase(3, thaw=…)."
            )

    def __repr__(self) -> str:
        paths = f"freeze={list(self.freeze)}, thaw={list(self.thaw)}"
        return f"Phase({self.epoch}, {paths}, eval_mode={self.eval_mode})"

    def on_start(self, trainer: TrainerControls) -> None:
        """Raise if the model has no such parts: the epoch may be hours away."""
        model = _graph(trainer.model)
        for path in (*self.freeze, *self.thaw):
            model.parameters_at(path)

    def on_epoch_start(self, trainer: TrainerControls, epoch: int) -> None:
        """Freeze and thaw if this is the epoch."""
        if epoch != self.epoch:
            return
        model = _graph(trainer.model)
        for path in self.freeze:
            model.freeze(path, eval_mode=self.eval_mode)
        for path in self.thaw:
            model.thaw(path)


def _graph(model: nn.Module) -> Graph:
    if isinstance(model, Graph):
        return model
    raise TrainError(
        f"Phase freezes by path, but the model is {a_type(model)}, not a Graph. "
        "Build it with FlowBuilder, or set requires_grad in your own hook."
    )
