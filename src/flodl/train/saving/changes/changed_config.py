"""Settings of the user that changed since a run was saved, and which of them a resume ignores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flodl.core.ignored_settings import Ignored

from ...record.changes import ABSENT


def changed_config(
    own: Mapping[str, Any], saved: Mapping[str, Any], ignored: Ignored | None = None, path: str = "config"
) -> Iterator[str]:
    """Describe settings of the user that changed since the run was saved, by their paths.

    A setting that is missing is not one that is None, but neither says more than the other.

    >>> list(changed_config({"width": 8, "pad": None}, {"width": 9, "mixup": 0.2}))
    ['config.width is now 8, was 9', 'config.mixup is no longer set, was 0.2']
    >>> list(changed_config({"lr": 0.1}, {"lr": 0.2}, Ignored({"lr": [0.1]})))
    ['config.lr is ignored: it is now 0.1, was 0.2']
    >>> list(changed_config({"lr": 0.1}, {"lr": 0.2}, Ignored({"lr": [0.03]})))
    ['config.lr is now 0.1, was 0.2; the resumed run keeps its saved lr']
    """
    ignored = ignored or Ignored()
    for name in (*own, *(name for name in saved if name not in own)):
        now, before, where = own.get(name, ABSENT), saved.get(name, ABSENT), f"{path}.{name}"
        if isinstance(now, Mapping) and isinstance(before, Mapping):
            yield from changed_config(now, before, ignored, where)
        elif _known(now) != _known(before):
            yield from _changed_setting(where, now, before, ignored)


def used_config(
    own: Mapping[str, Any], saved: Mapping[str, Any], ignored: Ignored, path: str = "config"
) -> dict[str, Any]:
    """Return the settings of the user with the values that apply: the saved one for each that is ignored.

    >>> used_config({"lr": 0.5, "width": 8}, {"lr": 0.1, "width": 9}, Ignored({"lr": [0.5]}))
    {'lr': 0.1, 'width': 8}
    """
    used: dict[str, Any] = {}
    for name, now in own.items():
        before, where = saved.get(name, ABSENT), f"{path}.{name}"
        if isinstance(now, Mapping) and isinstance(before, Mapping):
            used[name] = used_config(now, before, ignored, where)
        elif _known(now) == _known(before) or ignored.effect_of(where, now, before) != "ignored":
            used[name] = now
        elif before is not ABSENT:
            used[name] = before
    return used


def _changed_setting(path: str, now: Any, before: Any, ignored: Ignored) -> Iterator[str]:
    was = "was not set before" if before is ABSENT else f"was {before!r}"
    if now is ABSENT:
        yield f"{path} is no longer set, {was}"
        return
    effect = ignored.effect_of(path, now, before)
    if effect != "none":
        is_now = "is ignored: it is now" if effect == "ignored" else "is now"
        kept = ignored.kept(path) if effect == "changed" else None
        more = f"; the resumed run keeps its saved {kept}" if kept else ""
        yield f"{path} {is_now} {now!r}, {was}{more}"


def _known(value: Any) -> Any:
    return None if value is ABSENT else value
