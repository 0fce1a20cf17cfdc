"""Calls the hooks of a trainer at each event."""

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

if TYPE_CHECKING:
    from ..trainer import Trainer

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
