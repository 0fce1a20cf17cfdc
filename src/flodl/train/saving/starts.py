"""The starts of a run in config.json: the first record as a whole, then what changed with each start."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

_RECORDED = ("trainer", "started_with")


def starts_with(content: Mapping[str, Any], previous: bytes | None, step: int) -> list[dict[str, Any]]:
    """Return the starts in the previous config.json and the one that begins now, at a step.

    >>> first = starts_with({"trainer": {"lr": 0.1}}, None, 0)
    >>> earlier = json.dumps({"trainer": {"lr": 0.1}, "starts": first}).encode()
    >>> starts_with({"trainer": {"lr": 0.2}}, earlier, 30)[1]["changed"]
    {'trainer.lr': {'was': 0.1, 'now': 0.2}}
    """
    begun: dict[str, Any] = {"started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "step": step}
    recorded: dict[str, Any] = json.loads(json.dumps(_recorded(content), default=str))
    earlier = _read(previous)
    if earlier is None:
        return [{**begun, **recorded}]
    starts = earlier.get("starts")
    if not isinstance(starts, list) or not starts:  # written by an older version of flodl
        starts = [{"started_at": None, "step": 0, **_recorded(earlier)}]
    return [*starts, {**begun, "changed": _changed("", recorded, _recorded(earlier))}]


def _recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in _RECORDED if name in content}


def _read(previous: bytes | None) -> dict[str, Any] | None:
    """Return the content of an earlier config.json; None if there is none, or if it is damaged."""
    try:
        found = None if previous is None else json.loads(previous)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _changed(path: str, now: Any, before: Any) -> dict[str, Any]:
    """Return what changed by dotted path: its earlier value and its value now, where there is one."""
    if isinstance(now, dict) and isinstance(before, dict):
        found: dict[str, Any] = {}
        for name in dict.fromkeys((*now, *before)):
            where = f"{path}.{name}" if path else name
            if name in now and name in before:
                found |= _changed(where, now[name], before[name])
            else:
                found[where] = {"now": now[name]} if name in now else {"was": before[name]}
        return found
    return {} if now == before else {path: {"was": before, "now": now}}
