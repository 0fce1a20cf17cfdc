"""The starts of a run in config.json: the first record as a whole, then what changed with each start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from flodl.core.ignored_settings import Ignored, joined, read_changes

from ..changes.ignored import RECORDED
from .earlier_config import damage_of

_RECORDED = ("trainer", "started_with")
_OF_USER = ("trainer.config.", "started_with.")


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
    return [*starts, {**begun, **_changes(recorded, _recorded(earlier))}]


def _changes(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return what changed, and apart from that the settings of the user that a resume ignored, if any.

    >>> now = {"ignored_optimizer_settings": {"lr": [0.1]}, "config": {"lr": 0.1, "width": 8}}
    >>> _changes({"trainer": now}, {"trainer": {"config": {"lr": 0.2, "width": 9}}})
    {'changed': {'trainer.config.width': {'was': 9, 'now': 8}}, 'ignored': {'trainer.config.lr': 0.1}}
    """
    trainer = now.get("trainer") or {}
    leaves = _leaves("", {name: trainer.get(name) for name in ("optimizer_settings", "hooks", "seed")})
    saved = joined(*({path.rpartition(".")[2]: [value]} for path, value in leaves))
    read = read_changes(trainer, before.get("trainer") or {})
    known = Ignored(_ignored_in(now), _ignored_in(before), saved, read)
    changed: dict[str, Any] = {}
    ignored: dict[str, Any] = {}
    for path, values in _changed("", now, before).items():
        if path.removeprefix("trainer.").partition(".")[0] in RECORDED:
            continue
        effect = "changed"
        if path.startswith(_OF_USER) and "now" in values:
            effect = known.effect_of(path.removesuffix(".value"), values["now"], values.get("was"))
        if effect == "ignored":
            ignored[path] = values["now"]
        elif effect == "changed":
            changed[path] = values
    return {"changed": changed, "ignored": ignored} if ignored else {"changed": changed}


def _ignored_in(recorded: Mapping[str, Any]) -> dict[str, list[Any]]:
    trainer = recorded.get("trainer") or {}
    return joined(*(trainer.get(name) or {} for name in RECORDED))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _leaves(f"{path}.{name}", one)
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for one in value:
            yield from _leaves(path, one)
    else:
        yield path, value


def _recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in _RECORDED if name in content}


def _read(previous: bytes | None) -> dict[str, Any] | None:
    """Return the content of an earlier config.json; None if there is none, or if it is damaged."""
    return None if previous is None or damage_of(previous) else dict(json.loads(previous))


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
