"""The settings of hooks, compared with those of an earlier start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from flodl.core.plain import plain

from ..callbacks.dispatch import Hooks
from .changes import ABSENT, changes

# A description is deeper than the settings of a user.
MAX_DEPTH = 24


def loaded_hooks(hooks: Hooks) -> list[Any]:
    """Describe hooks as they are now, as in a record."""
    return [plain(one, depth=MAX_DEPTH) for one in hooks.described()]


def changed_hooks(
    now: Sequence[Any], before: Sequence[Any], reported: Collection[str], loaded: Sequence[Any]
) -> Iterator[str]:
    """Describe what changed in hooks, those of a class in order; `loaded` are those of now with their state.

    A setting that a loaded state has replaced is named as such. A value that has become another one is a
    part of the state, such as averaged weights, whose first values say nothing.

    >>> now, before = [{"class": "Decay", "gamma": 0.9}], [{"class": "Decay", "gamma": 0.5}]
    >>> [*changed_hooks(now, before, (), now)]
    ['hooks.Decay.gamma is now 0.9, was 0.5']
    >>> [*changed_hooks(now, before, (), before)]
    ['hooks.Decay.gamma continues with its saved value of 0.5, not 0.9']
    """
    pairs, missing = _paired(now, before)
    for (hook, saved), after in zip(pairs, loaded):
        kind = _kind(hook)
        if saved is not ABSENT:
            yield from _changed_hook(f"hooks.{kind}", hook, saved, after)
        elif kind not in reported:
            yield f"the hook {kind} is new"
    kinds = map(_kind, missing)
    yield from (f"the hook {kind} of the saved run is missing" for kind in kinds if kind not in reported)


def _changed_hook(path: str, now: Any, before: Any, loaded: Any) -> Iterator[str]:
    if isinstance(now, Mapping) and isinstance(before, Mapping) and isinstance(loaded, Mapping):
        for name in (*now, *(name for name in before if name not in now)):
            values = (each.get(name, ABSENT) for each in (now, before, loaded))
            yield from _changed_hook(f"{path}.{name}", *values)
    elif loaded is ABSENT or loaded == now:
        yield from changes(path, now, before)
    elif loaded == before and now is not ABSENT:
        yield f"{path} continues with its saved value of {before!r}, not {now!r}"


def ignored_in_hooks(
    now: Sequence[Any], before: Sequence[Any], loaded: Sequence[Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting that a loaded state has replaced: name, value in this program, saved value.

    >>> now, before = [{"class": "Decay", "gamma": 0.9}], [{"class": "Decay", "gamma": 0.5}]
    >>> [*ignored_in_hooks(now, before, before)]
    [('gamma', 0.9, 0.5)]
    """
    pairs, _ = _paired(now, before)
    for (hook, saved), after in zip(pairs, loaded):
        yield from _ignored("", hook, saved, after)


def _ignored(name: str, now: Any, before: Any, loaded: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(now, Mapping) and isinstance(before, Mapping) and isinstance(loaded, Mapping):
        for inner, one in now.items():
            yield from _ignored(inner, one, before.get(inner, ABSENT), loaded.get(inner, ABSENT))
    elif name and before is not ABSENT and now != before and loaded == before:
        yield name, now, before


def restored_hooks(now: Sequence[Any], before: Sequence[Any], loaded: Sequence[Any]) -> list[Any]:
    """Return the settings of hooks that apply: those of this program, or saved ones that were loaded.

    >>> restored_hooks([{"gamma": 0.9, "n": 0}], [{"gamma": 0.5, "n": 0}], [{"gamma": 0.5, "n": 7}])
    [{'gamma': 0.5, 'n': 0}]
    """
    pairs, _ = _paired(now, before)
    return [_restored(hook, saved, after) for (hook, saved), after in zip(pairs, loaded)]


def _restored(now: Any, before: Any, loaded: Any) -> Any:
    if isinstance(now, Mapping) and isinstance(before, Mapping) and isinstance(loaded, Mapping):
        return {
            name: _restored(one, before.get(name, ABSENT), loaded.get(name, ABSENT))
            for name, one in now.items()
        }
    return before if before is not ABSENT and loaded == before else now


def with_created(
    before: Sequence[Any], now: Sequence[Any], loaded: Sequence[Any], created: Sequence[Collection[str]]
) -> list[Any]:
    """Add to saved settings the schedulers that an older version of flodl left out, as they were loaded.

    `created` are the names of those that each hook has created.

    >>> now, loaded = ([{"class": "Decay", "falls": {"gamma": gamma}}] for gamma in (0.9, 0.5))
    >>> with_created(["Decay"], now, loaded, [["falls"]])
    [{'class': 'Decay', 'falls': {'gamma': 0.5}}]
    """
    pairs, left = _paired(now, before)
    found = []
    for (_, saved), after, names in zip(pairs, loaded, created):
        known = saved if isinstance(saved, Mapping) else {"class": saved}
        missing = {name: after[name] for name in names if name not in known}
        if saved is not ABSENT:
            found.append({**known, **missing} if missing else saved)
    return found + left


def _paired(now: Sequence[Any], before: Sequence[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Return each hook with the saved one, if any, and the saved ones that are left: equal ones first."""
    left = list(before)
    found: dict[int, Any] = {}
    for is_same in (lambda one, other: one == other, lambda one, other: _kind(one) == _kind(other)):
        for number, hook in enumerate(now):
            at = next((at for at, one in enumerate(left) if is_same(hook, one)), None)
            if number not in found and at is not None:
                found[number] = left.pop(at)
    return [(hook, found.get(number, ABSENT)) for number, hook in enumerate(now)], left


def _kind(hook: Any) -> str:
    text = str(hook.get("class") or hook.get("code")) if isinstance(hook, Mapping) else str(hook)
    return text.partition("(")[0].partition(" #")[0]
