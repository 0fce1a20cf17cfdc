"""What the data of each kind look like on the disk: a journal may be damaged, or another program's."""

from __future__ import annotations

from typing import Any

from flodl.monitor.checks import NEEDED

_NUMBER = (int, float)
_SHAPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run_start": {
        "name": str,
        "total_epochs": int,
        "config": list,
        "versions": dict,
        "pid": int,
        "host": str,
        "hardware": str,
    },
    "epoch": {"epoch": int, "metrics": dict, "duration_s": _NUMBER, "eta_s": _NUMBER},
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
}
_NOTHING: frozenset[str] = frozenset()


def fitting(kind: str, data: dict[str, Any]) -> dict[str, Any] | None:
    """Give the data of an event without what is of the wrong type, or None if it lacks what its kind needs.

    >>> fitting("alert", {"message": "hot", "level": 7}), fitting("alert", {"message": 7})
    ({'message': 'hot'}, None)
    """
    shape = _SHAPES.get(kind, {})
    misfits = [name for name, value in data.items() if name in shape and not isinstance(value, shape[name])]
    if misfits:
        data = {name: value for name, value in data.items() if name not in misfits}
    return data if NEEDED.get(kind, _NOTHING) <= data.keys() else None
