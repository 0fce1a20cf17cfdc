"""The settings of each start of a run that were used: a resumed run may ignore some of its program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .starts import Start

# By the name of the setting: the values of this program in whose place those of the saved run applied.
_IGNORED = "ignored_optimizer_settings."
# What a `Trainer` recorded as applied.
_APPLIED = "optimizer_settings."


def used_settings(starts: Iterable[Start]) -> list[list[dict[str, Any]]]:
    """Return the settings of each start; one that was set without effect has its earlier value.

    A resumed run continues with the optimizer settings that were saved. If its program was started with
    another `lr`, which it passes to the optimizer, then this `lr` had no effect.
    """
    found: list[list[dict[str, Any]]] = []
    before: dict[str, dict[str, Any]] = {}
    for start in starts:
        config = start.config
        recorded = {str(item.get("path")): item.get("value") for item in config}
        used = [
            _used(item, recorded, before) for item in config if not str(item.get("path")).startswith(_IGNORED)
        ]
        before = {str(item.get("path")): item for item in used} or before
        found.append(used)
    return found


def _used(
    item: dict[str, Any], recorded: Mapping[str, Any], before: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return a setting; one that was set without effect as in the earlier start, or as in the optimizer."""
    path, value = str(item.get("path")), item.get("value")
    name = path.rpartition(".")[2]
    values = recorded.get(_IGNORED + name)
    if not isinstance(values, list) or not _is_of_user(item, path):
        return item
    if not any(_is_same(value, one) for one in values):
        return item
    return before.get(path, {**item, "value": recorded.get(_APPLIED + name, value)})


def _is_of_user(item: Mapping[str, Any], path: str) -> bool:
    """Return whether someone has set a value, on the command line or in `config`; the rest is recorded."""
    return bool(item.get("origin")) or path.startswith("config.") or "." not in path


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        # A rate that was on the device has been rounded to float32.
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)
