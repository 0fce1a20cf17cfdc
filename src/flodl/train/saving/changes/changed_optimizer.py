"""Optimizer settings of this program that are ignored on resume: those of the saved run apply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from torch import Tensor

Groups = Iterable[Mapping[str, Any]]
# Chosen by the training step, or without effect on the results.
_NOT_COMPARED = frozenset({"params", "param_names", "fused", "foreach", "capturable"})
# What torch's OneCycleLR computes from `max_lr`.
_OF_ONE_CYCLE = ("initial_lr", "min_lr")


def changed_optimizer(own: Groups, loaded: Groups, *, at_start: Groups | None, scheduled: bool) -> list[str]:
    """Describe optimizer settings of this program that are ignored.

    A value that is the same as `at_start` of the saved run is not ignored: a hook changed it later.
    """
    found = {
        f"the optimizer continues with its saved {name} of {_short(after)}, not {_short(before)}"
        for name, before, after in _changed(own, loaded, at_start, scheduled)
    }
    return sorted(found)


def ignored_settings(
    own: Groups, loaded: Groups, *, at_start: Groups | None, scheduled: bool
) -> dict[str, list[Any]]:
    """Return the values of this program that are ignored, by name, for the record of the start.

    >>> ignored_settings([{"lr": 0.001}], [{"lr": 0.01}], at_start=None, scheduled=False)
    {'lr': [0.001]}
    """
    found: dict[str, list[Any]] = {}
    for name, before, _ in _changed(own, loaded, at_start, scheduled):
        values = found.setdefault(name, [])
        if before not in values:
            values.append(before)
    return found


def _changed(
    own: Groups, loaded: Groups, at_start: Groups | None, scheduled: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each setting that is ignored, its value in this program, and the one that applies.

    With a torch scheduler, `initial_lr` is the rate that the user specified, and `lr` the current one.
    """
    not_compared = _NOT_COMPARED | ({"lr", "initial_lr"} if scheduled else set())
    for before, after, start in zip(own, loaded, chain(at_start or (), repeat({}))):
        before, after, start = _with_written_rate(before, after, start)
        found = [
            name
            for name in before
            if name not in not_compared and name in after and not _same(before[name], after[name])
            if name not in start or not _same(before[name], start[name])
        ]
        if "max_lr" in found:
            factors = {name: _factor(before[name], after[name]) for name in found if _is_rate(name)}
            found = [
                name
                for name in found
                if name not in _OF_ONE_CYCLE or not _same(factors[name], factors["max_lr"])
            ]
        yield from ((name, before[name], after[name]) for name in found)


def _with_written_rate(*groups: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return groups to compare: by `initial_lr` if the first two have it, else with it as `lr`.

    >>> _with_written_rate({"lr": 0.0, "initial_lr": 0.1}, {"lr": 0.2})
    [{'lr': 0.1}, {'lr': 0.2}]
    """
    own, loaded, *_ = groups
    left_out = "lr" if "initial_lr" in own and "initial_lr" in loaded else "initial_lr"
    found: list[Mapping[str, Any]] = []
    for group in groups:
        known = dict(group)
        if "initial_lr" in known and left_out == "initial_lr":
            known["lr"] = known["initial_lr"]
        elif "lr" in known and "initial_lr" not in known and left_out == "lr":
            known["initial_lr"] = known["lr"]
        known.pop(left_out, None)
        found.append(known)
    return found


def _is_rate(name: str) -> bool:
    return name == "max_lr" or name in _OF_ONE_CYCLE


def _factor(one: Any, other: Any) -> float:
    return float(one) / float(other) if _is_number(one) and _is_number(other) and other else math.nan


def changed_ratios(own: Sequence[float], loaded: Sequence[float]) -> list[str]:
    """Describe rates of groups relative to a schedule that are ignored.

    >>> changed_ratios((0.5, 1.0), (0.1, 1.0))[0].partition("its ")[2]
    'saved lr of 0.1 times the schedule, not 0.5 times, for a parameter group'
    """
    found = {
        f"the optimizer continues with its saved lr of {_short(after)} times the schedule, not "
        f"{_short(before)} times, for a parameter group"
        for before, after in zip(own, loaded)
        if not _same(before, after)
    }
    return sorted(found)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if _is_number(one) and _is_number(other):
        # A rate that was on the device has been rounded to float32.
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return True
    return bool(one == other)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_short, value))})"
    return f"{float(value):g}" if _is_number(value) else repr(value)
