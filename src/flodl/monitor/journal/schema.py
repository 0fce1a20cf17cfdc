"""The types of each event's fields on disk; a journal may be damaged or written by another program."""

from __future__ import annotations

from typing import Any

from ..events import REQUIRED

_NUMBER = (int, float)
_MAX_NUMBER = 2**53
_TYPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run_start": {
        "name": str,
        "folder": str,
        "total_epochs": int,
        "config": list,
        "versions": dict,
        "pid": int,
        "host": str,
        "hardware": str,
    },
    "epoch": {
        "epoch": int,
        "metrics": dict,
        "duration_s": _NUMBER,
        "eta_s": _NUMBER,
        "tables": dict,
        "restored": bool,
    },
    "metrics": {"epoch": _NUMBER, "step": _NUMBER, "metrics": dict},
    "progress": {"epoch": _NUMBER, "step": _NUMBER, "num_steps": _NUMBER},
    "resources": {"gpus": list},
    "graph": {"label": str, "hash": str, "device": str, "parameters": dict, "path": str},
    "tier": {
        "tier": str,
        "reason": str,
        "what": str,
        "step": _NUMBER,
        "gain": _NUMBER,
        "eager_step_s": _NUMBER,
        "step_s": _NUMBER,
    },
    "save": {"path": str, "reason": str, "duration_s": _NUMBER},
    "alert": {"message": str, "level": str, "path": str},
    "gc": {"duration_s": _NUMBER},
    "sync": {"duration_s": _NUMBER},
    "run_end": {"status": str, "message": str, "duration_s": _NUMBER},
    "config": {"config": list, "total_epochs": int, "versions": dict},
    "ranks": {"ranks": list, "totals": dict, "slices": dict, "pace": dict, "syncs": list, "policy": str},
    "note": {"message": str, "about": str, "step": _NUMBER, "level": str},
}
_NOTHING: frozenset[str] = frozenset()


def valid_fields(kind: str, data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the data without fields of the wrong type, or None if a required field is then missing.

    >>> valid_fields("alert", {"message": "hot", "level": 7}), valid_fields("alert", {"message": 7})
    ({'message': 'hot'}, None)
    """
    types = _TYPES.get(kind, {})
    invalid = [name for name, value in data.items() if name in types and not _is_valid(value, types[name])]
    if invalid:
        data = {name: value for name, value in data.items() if name not in invalid}
    return data if REQUIRED.get(kind, _NOTHING) <= data.keys() else None


def _is_valid(value: Any, types: type | tuple[type, ...]) -> bool:
    """Return whether a value from JSON has one of these types; a bool is not a number."""
    if types is _NUMBER or types is int:
        if type(value) is float and types is _NUMBER:
            return -_MAX_NUMBER <= value <= _MAX_NUMBER  # false for NaN
        return type(value) is int and (0 if types is int else -_MAX_NUMBER) <= value <= _MAX_NUMBER
    return type(value) is types
