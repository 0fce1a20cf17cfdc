"""What a program changes between two runs of a trainer: settings of the optimizer, modes and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.monitor.run_settings.model import describe_model, hash_of_tensors, hash_of_weights
from flodl.monitor.run_settings.modes import describe_modes, sets_own_modes
from flodl.monitor.run_settings.optimizer import describe_optimizer

from ..session import Session
from .changes import changes

# What a scheduler of torch may change.
_SCHEDULED = frozenset({"lr", "initial_lr", "momentum", "betas"})
_MEMBERS = frozenset({"parameters"})


@dataclass(frozen=True)
class State:
    """What applies at one moment: the settings of the optimizer, the modes of the model, its weights."""

    num_groups: int
    optimizer: dict[str, Any]
    modes: dict[str, Any]
    # "" where switching the model to another mode may change its weights.
    weights: str

    @classmethod
    def of(cls, session: Session) -> State:
        """Return the state of a run that is not training."""
        model, optimizer = session.model, session.optimizer
        modes: dict[str, Any] = describe_modes(model)
        is_ambiguous = not model.training and sets_own_modes(model)
        if is_ambiguous:
            modes["evaluating"] = None
        return cls(
            len(optimizer.param_groups),
            _settings(session),
            modes,
            "" if is_ambiguous or sets_own_modes(model) else hash_of_tensors(model.parameters()),
        )

    def changed(self, now: State) -> list[str]:
        """Describe which settings a later state has changed, one line each."""
        if now.num_groups != self.num_groups:
            return [
                f"the optimizer now has {now.num_groups} parameter groups; it had {self.num_groups} before"
            ]
        known = {name: item for name, item in now.modes.items() if item is not None}
        before = {name: self.modes[name] for name in known if self.modes[name] is not None}
        # The parameters of a group are not named if it has all that are trained, so freezing changes them.
        # A torch scheduler that exists in only one of the two sets the rate there.
        left_out = _MEMBERS | (_SCHEDULED & (_names_in(self.optimizer) ^ _names_in(now.optimizer)))
        left, own = _without(left_out, self.optimizer), _without(left_out, now.optimizer)
        return [
            *changes("optimizer_settings", _settled(own, left), left),
            *changes("model", {name: known[name] for name in before}, before),
        ]

    def has_other_weights(self, now: State) -> bool:
        """Return whether the weights of a later state are known to differ."""
        return bool(self.weights and now.weights) and self.weights != now.weights

    def overlay(self, now: State, session: Session) -> dict[str, Any]:
        """Return what the record of a later start has to replace, as parts of it."""
        found: dict[str, Any] = {}
        if now.num_groups != self.num_groups:
            found["optimizer_settings"] = now.optimizer
        elif settings := _differing(_settled(now.optimizer, self.optimizer), self.optimizer):
            found["optimizer_settings"] = settings
        if self.modes != now.modes and None not in (*self.modes.values(), *now.modes.values()):
            found["model"] = {**describe_model(session.model), **now.modes}
        if self.has_other_weights(now):
            found["model"] = {**found.get("model", {}), "weights_at_start": hash_of_weights(session.model)}
        return found


def merged(record: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with parts of it replaced.

    >>> merged({"model": {"class": "Net", "trainable": 3}}, {"model": {"trainable": 2}})
    {'model': {'class': 'Net', 'trainable': 2}}
    """
    found = dict(record)
    for name, item in changed.items():
        inner = found.get(name)
        # If the parameter groups differ, the new ones replace all of the old ones.
        if isinstance(item, Mapping) and isinstance(inner, Mapping) and _groups_in(item) <= _groups_in(inner):
            found[name] = merged(inner, item)
        else:
            found[name] = item
    return found


def still_ignored(
    ignored: Mapping[str, Sequence[Any]], changed: Mapping[str, Any] | None
) -> dict[str, list[Any]]:
    """Return the settings that a resume has ignored, without values that the program has set since then.

    >>> still_ignored({"lr": [0.001], "momentum": [0.8]}, {"lr": 0.001})
    {'momentum': [0.8]}
    """
    found = {}
    for name, values in ignored.items():
        now = _values_of(changed or {}, name)
        if left := [value for value in values if all(_settled(value, one) != one for one in now)]:
            found[name] = left
    return found


def _values_of(settings: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values of a setting in all groups."""
    inner = [one for item in settings.values() if isinstance(item, Mapping) for one in _values_of(item, name)]
    return [*inner, settings[name]] if name in settings else inner


def _groups_in(settings: Mapping[str, Any]) -> set[str]:
    return {name for name, item in settings.items() if isinstance(item, Mapping)}


def _settings(session: Session) -> dict[str, Any]:
    """Return the settings of the optimizer, without those that a schedule sets."""
    optimizer, bridge = session.optimizer, session.train_step.schedule
    found = describe_optimizer(optimizer, None, session.model)
    # Set by a scheduler of torch, which the program may step between two runs.
    is_scheduled = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
    left_out = frozenset({"lr"}) if bridge is not None else _SCHEDULED if is_scheduled else frozenset()
    found = _without(left_out, found)
    if bridge is not None:
        found["lr_scale"] = bridge.lr_scale
    return found


def _without(names: frozenset[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without(names, item) if isinstance(item, Mapping) else item
        for name, item in settings.items()
        if name not in names
    }


def _names_in(settings: Mapping[str, Any]) -> set[str]:
    """Return the names of the settings of all groups."""
    inner = (item for item in settings.values() if isinstance(item, Mapping))
    return {*settings, *(name for group in inner for name in group)}


def _settled(now: Any, before: Any) -> Any:
    """Return settings, with the earlier number in place of one that differs by rounding."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        return {name: _settled(item, before.get(name)) for name, item in now.items()}
    if isinstance(now, float) and isinstance(before, int | float):
        # A rate that was on a device has been rounded to float32; a product such as 0.1 * 0.1 is 0.01.
        return before if math.isclose(now, before, rel_tol=1e-6) else float(f"{now:.12g}")
    return now


def _differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, item in now.items():
        then = before.get(name)
        if isinstance(item, Mapping) and isinstance(then, Mapping):
            if inner := _differing(item, then):
                found[name] = inner
        elif name not in before or item != then:
            found[name] = item
    return found
