"""What may happen beside training: objects with methods of these names, taking what they want to know."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flodl.checkpoint import encode
from flodl.core import CheckpointError, TrainError
from flodl.core.paths import suggestion
from flodl.graph import Graph

from .patience import Mode, Patience

if TYPE_CHECKING:
    from .trainer import Trainer

# What each moment offers; a hook takes any of it by name.
MOMENTS: dict[str, tuple[str, ...]] = {
    "on_start": ("trainer",),
    "on_resume": ("trainer", "epoch", "own_folder"),
    "on_epoch_start": ("trainer", "epoch"),
    "on_step_end": ("trainer", "epoch", "step", "batch", "loss"),
    "on_evaluate_end": ("trainer", "epoch", "metrics"),
    "on_epoch_end": ("trainer", "epoch", "metrics"),
    "on_save": ("trainer", "step", "metrics", "path"),
    "on_end": ("trainer", "result"),
}

Call = Callable[[Mapping[str, Any]], None]


class Hooks:
    """Hooks sorted by moment, their arguments checked once."""

    def __init__(self, hooks: Iterable[Any], trainer: Trainer) -> None:
        # Not its owner: a trainer that nobody holds any more shall go at once, with all that it holds.
        self._trainer = weakref.ref(trainer)
        try:
            self.all = list(hooks)
        except TypeError:
            raise TrainError(
                f"hooks={hooks!r}. Give a list of hooks: hooks=[{type(hooks).__name__}(…)]."
            ) from None
        self._calls: dict[str, list[Call]] = {moment: [] for moment in MOMENTS}
        for hook in self.all:
            found = [moment for moment in MOMENTS if callable(getattr(hook, moment, None))]
            name = getattr(hook, "__name__", None)
            for moment in found:
                self._calls[moment].append(_call(getattr(hook, moment), moment))
            if not found and callable(hook) and name in MOMENTS:
                self._calls[name].append(_call(hook, name))
            elif not found:
                raise _useless(hook)

    def wants(self, moment: str) -> bool:
        """Whether anybody listens to a moment."""
        return bool(self._calls[moment])

    def call(self, moment: str, **offered: Any) -> None:
        """Tell everybody who listens, in order; the trainer is offered with everything else."""
        for call in self._calls[moment]:
            call({"trainer": self._trainer(), **offered})

    def state_dict(self) -> list[list[Any]]:
        """Give the kind and the state of every hook that has one, in order."""
        return [[_kind(hook), hook.state_dict()] for hook in self.all if hasattr(hook, "state_dict")]

    def check_states(self) -> None:
        """Refuse a state that no bundle can hold before anything is trained, not at the first save."""
        for hook in self.all:
            state = None
            if hasattr(hook, "state_dict"):
                with suppress(Exception):  # what is not there yet may come before the first save
                    state = hook.state_dict()
            try:
                encode(state)
            except CheckpointError as error:
                raise error.under(_kind(hook)).under("hooks") from None

    def load_state_dict(self, states: list[list[Any]]) -> None:
        """Give every hook its state back, by kind and order; hooks that were added since start fresh."""
        waiting = [list(pair) for pair in states]
        for hook in self.all:
            if not hasattr(hook, "load_state_dict"):
                continue
            found = next((pair for pair in waiting if pair[0] == _kind(hook)), None)
            if found is not None:
                waiting.remove(found)
                hook.load_state_dict(found[1])

    def without_place(self, states: list[list[Any]]) -> list[str]:
        """Name the kinds of the saved states that no hook here takes."""
        takers = Counter(_kind(hook) for hook in self.all if hasattr(hook, "load_state_dict"))
        saved = Counter(kind for kind, state in states if state)
        return list((saved - takers).elements())

    def other_numbers(self, states: list[list[Any]]) -> list[tuple[str, int, int]]:
        """Give the kinds of which there are several, and of which other numbers were saved and are here."""
        saved = Counter(kind for kind, _ in states)
        here = Counter(_kind(hook) for hook in self.all if hasattr(hook, "load_state_dict"))
        kinds = [kind for kind in saved if here[kind] and saved[kind] != here[kind]]
        return [(kind, saved[kind], here[kind]) for kind in kinds]


def _kind(hook: Any) -> str:
    return type(hook).__name__


def _call(function: Callable[..., Any], moment: str) -> Call:
    parameters = inspect.signature(function).parameters.values()
    offered = MOMENTS[moment]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda given: function(**given)
    wanted = [p.name for p in parameters if p.name in offered]
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if parameter.name not in offered and required:
            hint = suggestion(parameter.name, offered, known_as="arguments")
            raise TrainError(f"{moment} has no argument {parameter.name!r} to give. {hint}")
    return lambda given: function(**{name: given[name] for name in wanted})


def _useless(hook: Any) -> TrainError:
    tried = [name for name in dir(hook) if name.startswith("on_")]
    tried += [hook.__name__] if hasattr(hook, "__name__") else []
    hint = suggestion(tried[0], MOMENTS, known_as="moments") if tried else f"Moments: {', '.join(MOMENTS)}."
    what = getattr(hook, "__name__", None) or type(hook).__name__
    return TrainError(f"the hook {what!r} has no method for any moment of training. {hint}")


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


def metric_of(metrics: Mapping[str, float], name: str, who: str) -> float:
    """Give a metric by name, or say which there are."""
    if name not in metrics:
        hint = suggestion(name, metrics, known_as="metrics")
        raise TrainError(f"{who} watches {name!r}, which this run does not have. {hint}")
    return float(metrics[name])
