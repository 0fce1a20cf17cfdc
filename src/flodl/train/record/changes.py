"""Differences between two descriptions, one line each: `path is now …, was …`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flodl.core.clock import is_same_reading
from flodl.monitor.run_settings.modules import pattern_of

ABSENT = object()
_MAX_TEXT = 200
_MAX_SHOWN = 160
# Of longer lists, only the first number that differs is shown.
_MAX_NUMBERS = 4
# A longer text of a module is shown without the settings that have not changed.
_MAX_MODULE = 80
# Before the name of a setting.
_SETTING = re.compile(r", (?=\w+=)")


def changes(path: str, now: Any, before: Any) -> Iterator[str]:
    """Describe what changed in a value at a path, and inside it.

    >>> list(changes("step", {"scale": 2, "clip": {"at": 1}}, {"scale": 3, "clip": {"at": 1}}))
    ['step.scale is now 2, was 3']
    """
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for name in (*now, *(name for name in before if name not in now)):
            where = f"{path}.{name}" if path else str(name)
            yield from changes(where, now.get(name, ABSENT), before.get(name, ABSENT))
    elif is_same_reading(now, before):
        return
    elif now != before and (line := _changed_numbers(path, now, before)):
        yield line
    elif now != before:
        shown, then = _shown(now), _shown(before)
        start = _start_of_difference(shown, then)
        is_now = "is no longer there" if now is ABSENT else f"is now {_cut(shown, start)}"
        yield f"{path} {is_now}, was {_cut(then, start)}"


def changed_modules(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Describe modules with a different class or different settings; "*" stands for all layers."""
    own, saved = now.get("modules") or {}, before.get("modules") or {}
    if not own or not saved:
        return
    for path in (*own, *(path for path in saved if path not in own)):
        text = own.get(path, own.get(pattern_of(path), ABSENT))
        then = saved.get(path, saved.get(pattern_of(path), ABSENT))
        other = saved if text is not ABSENT else own
        if ABSENT in (text, then) and any(pattern_of(one) == path for one in other):
            continue  # the modules of its layers have entries of their own there
        yield from changes(f"model.{path}", *_without_equal(text, then))


def _without_equal(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two long texts of modules of one class with only the settings that differ, if any.

    >>> setting = f"name='{'n' * 80}'"
    >>> _without_equal(f"Net({setting}, p=0.1, sizes=[1, 2])", f"Net({setting}, p=0.2, sizes=[1, 2])")
    ('Net(…, p=0.1)', 'Net(…, p=0.2)')
    """
    texts = (one, other)
    if one == other or not all(isinstance(text, str) and text.endswith(")") for text in texts):
        return one, other
    kinds, settings = zip(*(settings_in(text) for text in texts))
    if kinds[0] != kinds[1] or max(map(len, texts)) <= _MAX_MODULE:
        return one, other
    differing = [
        [part for part in own if part not in others] for own, others in (settings, reversed(settings))
    ]
    shown = [f"{kinds[0]}({', '.join(['…', *parts])})" for parts in differing]
    return (shown[0], shown[1]) if all(differing) else (one, other)


def settings_in(text: str) -> tuple[str, list[str]]:
    """Return the class and the settings in the text of a module.

    >>> settings_in("Net(sizes=[1, 2], name='a, b')")
    ('Net', ['sizes=[1, 2]', "name='a, b'"])
    """
    kind, _, inside = text.removesuffix(")").partition("(")
    return kind, _SETTING.split(inside)


def _changed_numbers(path: str, now: Any, before: Any) -> str:
    """Return the first difference between two long lists of numbers, or "" for other values."""
    lists = now, before
    if not all(isinstance(one, list) and all(type(item) in (int, float) for item in one) for one in lists):
        return ""
    if len(now) != len(before) or len(now) <= _MAX_NUMBERS:
        return ""
    found = [index for index, (one, other) in enumerate(zip(now, before)) if one != other]
    at, count = found[0], f"{len(found)} of {len(now)} numbers are different"
    return f"{path}[{at}] is now {now[at]!r}, was {before[at]!r} ({count})"


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "not there"
    return repr(value)


def _start_of_difference(now: str, before: str) -> int:
    """Return where to start showing two texts, so that what differs is visible."""
    if max(len(now), len(before)) <= _MAX_TEXT:
        return 0
    first = next((place for place, (a, b) in enumerate(zip(now, before)) if a != b), 0)
    return 0 if first < _MAX_SHOWN // 2 else first - _MAX_SHOWN // 4


def _cut(text: str, start: int) -> str:
    if not start and len(text) <= _MAX_TEXT:
        return text
    shown = text[start : start + _MAX_SHOWN]
    return f"{'…' * bool(start)}{shown}{'…' * (start + len(shown) < len(text))}"
