"""Calls the hooks of the callbacks, each with the arguments it asks for."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FunctionType
from typing import Any

from flodl.checkpoint import encode
from flodl.core import CheckpointError, TrainError
from flodl.core.contents import Contents
from flodl.core.paths import suggestion
from flodl.core.plain import describe

from .hook_functions import StopRequests, check_function, check_result
from .hooks import HOOKS, TrainerControls
from .schedulers import schedulers_in
from .standard import MetricWatcher
from .states import Identity, assign, settings_hash
from .unsaved_values import UnsavedValues

Call = Callable[[Mapping[str, Any]], Any]
Around = Callable[[str, int | None], AbstractContextManager[None]]


class Hooks:
    """Callbacks sorted by hook, their arguments checked once."""

    def __init__(self, hooks: Iterable[Any] | None, trainer: TrainerControls) -> None:
        # Weak: an unreferenced trainer is freed immediately, with everything it holds.
        self._trainer = weakref.ref(trainer)
        try:
            self.all = [] if hooks is None else list(hooks)
        except TypeError:
            raise TrainError(
                f"hooks={hooks!r}. Pass a list of hooks: hooks=[{type(hooks).__name__}(…)]."
            ) from None
        _check_repeated(self.all)
        # Taken now: training changes the state of a callback. A loaded state may replace some of them.
        self.settings = [_settings_of(callback, trainer) for callback in self.all]
        # The schedulers that `on_start` created, and their settings at that time, both by attribute.
        self._created = [dict[str, Any]() for _ in self.all]
        self.created_settings = [dict[str, Any]() for _ in self.all]
        # Entered around the calls of a hook, with its name and the epoch, if it has one.
        self._around: Around = _not_watched
        self._calls: dict[str, list[tuple[Any, Call]]] = {name: [] for name in HOOKS}
        # The hooks that are being called; several if a hook calls a method that calls hooks.
        self._running: list[str] = []
        self.stop_requests = StopRequests()
        self.unsaved_values = UnsavedValues(self.all)
        for callback in self.all:
            _check_callback(callback)
            found = [name for name in HOOKS if callable(getattr(callback, name, None))]
            own_name = getattr(callback, "__name__", None)
            for name in found:
                self._calls[name].append((callback, _bind(getattr(callback, name), name)))
            if not found and callable(callback) and own_name in HOOKS:
                self._calls[own_name].append((callback, _bind(callback, own_name)))
            elif not found:
                raise _no_hook(callback)

    def described(self) -> list[Any]:
        """Describe the callbacks as they are now, for a comparison with `all_settings`."""
        trainer = self._trainer()
        return [
            _joined(
                _settings_of(hook, trainer),
                {name: _settings_of(getattr(hook, name), trainer) for name in created},
            )
            for hook, created in zip(self.all, self.created_settings)
        ]

    def all_settings(self) -> list[Any]:
        """Return the settings of each callback, with those of the schedulers that its `on_start` created."""
        return [*map(_joined, self.settings, self.created_settings)]

    def note_created(self) -> None:
        """Describe the schedulers that callbacks with a state have created in `on_start`.

        An optimizer that the trainer makes does not exist earlier. A known scheduler has changed
        since then only by training.
        """
        trainer = self._trainer()
        for index, hook in enumerate(self.all):
            if not hasattr(hook, "load_state_dict") or type(hook).__module__.startswith("flodl."):
                continue
            settings, before, known = self.settings[index], self._created[index], self.created_settings[index]
            of_constructor = settings if isinstance(settings, Mapping) else {}
            found = {name: one for name, one in schedulers_in(hook).items() if name not in of_constructor}
            self._created[index] = found
            self.created_settings[index] = {
                name: known[name] if before.get(name) is one else _settings_of(one, trainer)
                for name, one in found.items()
            }

    def has(self, hook: str) -> bool:
        """Return whether a callback has this hook."""
        return bool(self._calls[hook])

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of every callback that has it, in order; `trainer` is added to the arguments.

        A callback of flodl whose metric is not there yet comes last: a hook after it may add the metric.
        """
        if not self._calls[hook]:
            return
        arguments = {"trainer": self._trainer(), **arguments}
        postponed = []
        with self._around(hook, arguments.get("epoch")), self._noted_as_running(hook):
            for callback, call in self._calls[hook]:
                if hook == "on_epoch_end" and _awaits_metric(callback, arguments["metrics"]):
                    postponed.append(call)
                else:
                    self._check_stop(callback, hook, call(arguments))
            for call in postponed:
                call(arguments)

    def refuse_inside(self, method: str, hooks: Iterable[str], advice: str) -> None:
        """Raise if a method of the trainer is called by one of these hooks, which it would call again."""
        if found := next((hook for hook in hooks if hook in self._running), ""):
            raise TrainError(f"trainer.{method} was called in {found}. {advice}")

    def _check_stop(self, callback: Any, hook: str, result: Any) -> None:
        has_stopped = bool(getattr(self._trainer(), "stop_reason", ""))
        self.stop_requests.check(callback, f"{hook} of {_name_of(callback)}", result, has_stopped=has_stopped)

    @contextmanager
    def _noted_as_running(self, hook: str) -> Iterator[None]:
        self._running.append(hook)
        try:
            yield
        finally:
            self._running.pop()

    @contextmanager
    def watched(self, around: Around) -> Iterator[None]:
        """Enter `around(hook, epoch)` around the calls of each hook that a callback has."""
        before, self._around = self._around, around
        try:
            yield
        finally:
            self._around = before

    def state_dict(self) -> list[list[Any]]:
        """Return the class name, the state and a hash of the settings of every callback with a state."""
        return [
            [_class(hook), hook.state_dict(), settings_hash(settings)]
            for hook, settings in zip(self.all, self.settings)
            if hasattr(hook, "state_dict")
        ]

    def check_states(self) -> None:
        """Raise if a state cannot be saved or loaded, before training starts rather than afterwards."""
        for hook in self.all:
            state = None
            if hasattr(hook, "state_dict"):
                with suppress(Exception):  # it may not be available before the first epoch
                    state = hook.state_dict()
            try:
                encode(state)
            except CheckpointError as error:
                raise error.under(_class(hook)).under("hooks") from None
            _check_both(hook)

    def load_state_dict(self, states: list[list[Any]]) -> None:
        """Restore every callback's state by class and settings, else by class and order.

        Callbacks without a saved state start fresh.
        """
        loading = [hook for hook in self.all if hasattr(hook, "load_state_dict")]
        for index, at in self._assigned(states)[0].items():
            loading[index].load_state_dict(states[at][1])

    def guessed(self, states: list[list[Any]]) -> list[str]:
        """Return the classes of which several states are assigned in order: their settings changed."""
        changed = {kind for kind, *_ in self.changed_counts(states)}
        return [kind for kind in self._assigned(states)[1] if kind not in changed]

    def _assigned(self, states: list[list[Any]]) -> tuple[dict[int, int], list[str]]:
        own = [
            Identity(
                _class(hook), settings_hash(settings), hook.metric if isinstance(hook, MetricWatcher) else ""
            )
            for hook, settings in zip(self.all, self.settings)
            if hasattr(hook, "load_state_dict")
        ]
        # Older bundles have no settings.
        saved = [
            Identity(kind, settings[0] if settings else "", _metric_of(state))
            for kind, state, *settings in states
        ]
        return assign(own, saved)

    def unclaimed(self, states: list[list[Any]]) -> list[str]:
        """Return the classes of the saved states that no callback takes."""
        own = Counter(_class(hook) for hook in self.all if hasattr(hook, "load_state_dict"))
        saved = Counter(kind for kind, state, *_ in states if state)
        return list((saved - own).elements())

    def changed_counts(self, states: list[list[Any]]) -> list[tuple[str, int, int]]:
        """Return each class whose number of callbacks changed, with the saved and the current number."""
        saved = Counter(kind for kind, *_ in states)
        own = Counter(_class(hook) for hook in self.all if hasattr(hook, "load_state_dict"))
        kinds = [kind for kind in saved if own[kind] and saved[kind] != own[kind]]
        return [(kind, saved[kind], own[kind]) for kind in kinds]


def _not_watched(hook: str, epoch: int | None) -> AbstractContextManager[None]:
    return nullcontext()


def _awaits_metric(callback: Any, metrics: Mapping[str, Any]) -> bool:
    return isinstance(callback, MetricWatcher) and callback.metric not in metrics


def _joined(settings: Any, created: Mapping[str, Any]) -> Any:
    """Add settings of schedulers to those of a callback, which may be no more than its class.

    >>> _joined("Decay", {"scheduler": {"gamma": 0.5}})
    {'class': 'Decay', 'scheduler': {'gamma': 0.5}}
    """
    if not created:
        return settings
    return {**(settings if isinstance(settings, Mapping) else {"class": settings}), **created}


def _settings_of(hook: Any, trainer: TrainerControls | None) -> Any:
    """Describe a hook: its settings, and for one of the user also its code."""
    if type(hook).__module__.startswith("flodl."):
        return describe(hook)
    known = {} if trainer is None else {id(trainer): "the trainer", id(trainer.model): "the model"}
    return Contents(known).of(hook)


def _check_both(hook: Any) -> None:
    """Raise for a callback whose state is saved and never loaded, or loaded and never saved."""
    saves, loads = (callable(getattr(hook, name, None)) for name in ("state_dict", "load_state_dict"))
    if saves != loads:
        has, lacks = ("state_dict", "load_state_dict") if saves else ("load_state_dict", "state_dict")
        raise TrainError(
            f"the hook {_class(hook)} has {has} and no {lacks}: its state would be lost when the run is "
            f"resumed. Add {lacks}, or remove {has}."
        )


def _metric_of(state: Any) -> str:
    """Return the metric that a saved state is about, "" if there is none."""
    metric = state.get("metric") if isinstance(state, Mapping) else None
    return metric if isinstance(metric, str) else ""


def _class(hook: Any) -> str:
    return type(hook).__name__


def _bind(function: Callable[..., Any], hook: str) -> Call:
    parameters = inspect.signature(function).parameters.values()
    available = HOOKS[hook]
    check_function(function, hook)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda arguments: check_result(function(**arguments), function, hook)
    wanted = [p.name for p in parameters if p.name in available]
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if parameter.name not in available and required:
            hint = suggestion(parameter.name, available, known_as="arguments")
            raise TrainError(f"{hook} has no argument {parameter.name!r}. {hint}")
    return lambda arguments: check_result(
        function(**{name: arguments[name] for name in wanted}), function, hook
    )


def _check_callback(callback: Any) -> None:
    """Raise for a class in place of an object, and for a method that is named like a hook but is not one."""
    if isinstance(callback, type):
        for name in HOOKS:
            # A static method or class method can be called without an object.
            if isinstance(inspect.getattr_static(callback, name, None), FunctionType):
                raise TrainError(
                    f"hooks contains the class {callback.__name__}, not an instance. Create one: "
                    f"hooks=[{callback.__name__}(…)]."
                )
    names = [name for name in dir(callback) if name.startswith("on_") and name not in HOOKS]
    unknown = [name for name in names if callable(getattr(callback, name, None))]
    known = [name for name in HOOKS if callable(getattr(callback, name, None))]
    if unknown and known:
        raise TrainError(
            f"{_name_of(callback)} has a method {unknown[0]!r}, which is not a hook of a trainer and would "
            f"never be called. {suggestion(unknown[0], HOOKS, known_as='hooks')} If you call it yourself, "
            "choose a name without 'on_'."
        )


def _check_repeated(callbacks: list[Any]) -> None:
    """Raise for a callback that is in the list twice: it would count each epoch twice."""
    first = dict[int, int]()
    for index, callback in enumerate(callbacks):
        if (earlier := first.setdefault(id(callback), index)) != index:
            raise TrainError(
                f"hooks[{earlier}] and hooks[{index}] are the same {_name_of(callback)}, which would be "
                "called twice for each event. Leave one of them out, or create two objects."
            )


def _name_of(callback: Any) -> str:
    return getattr(callback, "__name__", None) or type(callback).__name__


def _no_hook(callback: Any) -> TrainError:
    names = [name for name in dir(callback) if name.startswith("on_")]
    names += [callback.__name__] if hasattr(callback, "__name__") else []
    hint = suggestion(names[0], HOOKS, known_as="hooks") if names else f"Hooks: {', '.join(HOOKS)}."
    return TrainError(f"{_name_of(callback)!r} does not implement any trainer hook. {hint}")
