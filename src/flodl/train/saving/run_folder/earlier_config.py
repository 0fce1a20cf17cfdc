"""An earlier config.json that is damaged: say what is wrong with it, and keep it under another name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..changes.ignored import RECORDED


def damage_of(config: bytes) -> str:
    """Say what is wrong with the content of a config.json; "" if nothing is.

    >>> damage_of(b'{"trainer": {"lr": 0.1}}'), damage_of(b'{"trainer": 5}'), damage_of(b"")
    ('', "its 'trainer' is not a dictionary", 'it is empty')
    """
    if not config.strip():
        return "it is empty"
    try:
        found = json.loads(config)
    except (ValueError, RecursionError):
        return "it is not valid JSON"
    if not isinstance(found, dict):
        return "it does not contain a dictionary"
    for name in ("trainer", "started_with"):
        if not isinstance(found.get(name) or {}, dict):
            return f"its {name!r} is not a dictionary"
    starts = found.get("starts") or []
    if not isinstance(starts, list) or not all(isinstance(one, dict) for one in starts):
        return "its 'starts' is not a list of dictionaries"
    trainer = found.get("trainer") or {}
    wrong = [name for name in RECORDED if not _is_table(trainer.get(name) or {})]
    return f"its 'trainer.{wrong[0]}' is not a dictionary of lists" if wrong else ""


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, list) for one in value.values())


def move_aside(config: Path) -> Path:
    """Rename a damaged config.json, and return its new path."""
    number = 1
    while os.path.lexists(kept := config.with_name(f"{config.name}.damaged{f'-{number}' * (number > 1)}")):
        number += 1
    return config.rename(kept)


def moved_text(why: str, config: Path, kept: Path) -> str:
    """Describe a config.json that was moved aside.

    >>> moved_text("it is empty", Path("run/config.json"), Path("run/config.json.damaged"))
    "'run/config.json' is damaged: it is empty. It was renamed to 'config.json.damaged', and ..."
    """
    return (
        f"{str(config)!r} is damaged: {why}. It was renamed to {kept.name!r}, and the new one lists only the "
        "starts from this one on. Training is not affected."
    )
