"""The callbacks that come with flodl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flodl.core import TrainError
from flodl.graph import Graph

from .patience import Mode, Patience

if TYPE_CHECKING:
    from ..trainer import Trainer

from .patience import metric_of


class _Watching:
    """Look at one metric with patience; what was seen is saved with the run."""

    def __init__(self, metric: str, patience: Patience) -> None:
        self.metric, self._patience = metric, patience

    def on_start(self, trainer: Trainer) -> None:
        """Begin anew where nothing was trained yet, whatever another run was seen to do."""
        if trainer.updates == trainer.epochs == 0:
            self._patience.begin()

    # A loop of one's own may have no start.
    on_epoch_start = on_start

    def value_in(self, metrics: Mapping[str, float]) -> float:
        """Give the metric that is watched, or say which there are."""
        return metric_of(metrics, self.metric, self._patience.who)

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs."""
        return self._patience.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._patience.load_state_dict(state)


class EarlyStopping(_Watching):
    """Stop when a metric has not improved by more than `tol` for `patience` epochs.

    A run that was stopped stays so when it is started again; one that starts from the folder of another
    waits anew.

    >>> stopping = EarlyStopping("eval_loss", patience=2)
    >>> [stopping.is_over(value) for value in [1.0, 0.5, 0.6, 0.55]]
    [False, False, False, True]
    """

    def __init__(
        self, metric: str = "eval_loss", *, patience: int = 3, mode: Mode = "min", tol: float = 0.0
    ) -> None:
        super().__init__(metric, Patience("EarlyStopping", patience, mode, tol))

    def is_over(self, value: float) -> bool:
        """Take the metric of one more epoch and say whether it is time to stop."""
        return self._patience.is_over(value)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Look at the metric of the epoch."""
        if self.is_over(self.value_in(metrics)):
            trainer.stop(self._reason)

    def on_resume(self, trainer: Trainer, own_folder: bool) -> None:
        """Stay stopped where the run had come to its end; wait anew where this is another run."""
        if not own_folder:
            self._patience.begin()
        elif self._patience.has_ended:
            trainer.stop(self._reason)

    @property
    def _reason(self) -> str:
        best = self._patience.best
        known = "never a number" if best is None else f"best {best:g}"
        return f"{self.metric} has not improved for {self._patience.epochs} epochs ({known})"


class ReduceOnPlateau(_Watching):
    """Multiply the learning rate by `factor` when a metric has not improved for `patience` epochs.

    As for `EarlyStopping`, better is by more than `tol` than the best so far, lower or, with mode="max",
    higher; a metric that gets worse, swings or is NaN does not improve. The wait begins anew after each
    fall, and the rate does not go below `least`.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        factor: float = 0.1,
        patience: int = 3,
        mode: Mode = "min",
        tol: float = 1e-4,
        least: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise TrainError(f"ReduceOnPlateau: factor={factor}. Give a number between 0 and 1.")
        super().__init__(metric, Patience("ReduceOnPlateau", patience, mode, tol))
        self.factor, self.least = factor, least

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Look at the metric of the epoch."""
        if self._patience.is_over(self.value_in(metrics)):
            self._patience.waited = 0
            trainer.scale_lr(self.factor, least=self.least)


class Phase:
    """Freeze and thaw parts of a graph by path when an epoch, counted from 0, begins.

    `Phase(0, freeze=["encoder"])` and `Phase(3, thaw=["encoder"])` train the rest for three epochs first.
    With `eval_mode`, dropout and batch norm of what is frozen are stilled too. All of it is saved with the
    run, so a resumed one need not pass the epoch again.
    """

    def __init__(
        self, epoch: int, *, freeze: Iterable[str] = (), thaw: Iterable[str] = (), eval_mode: bool = False
    ) -> None:
        if isinstance(freeze, str) or isinstance(thaw, str):
            raise TrainError("Phase: give lists of paths, for example thaw=['encoder'].")
        self.epoch, self.freeze, self.thaw, self.eval_mode = epoch, tuple(freeze), tuple(thaw), eval_mode

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Act where this is the epoch."""
        if epoch != self.epoch:
            return
        model = trainer.model
        if not isinstance(model, Graph):
            raise TrainError(
                f"Phase freezes by path, and the model is a {type(model).__name__}, not a Graph. "
                "Build it with FlowBuilder, or set requires_grad in a hook of your own."
            )
        for path in self.freeze:
            model.freeze(path, eval_mode=self.eval_mode)
        for path in self.thaw:
            model.thaw(path)
