"""Differences between the model of this program and the model whose weights it restores, in words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from flodl.core import log
from flodl.core.plain import plain
from flodl.monitor.run_settings.machine import versions
from flodl.monitor.run_settings.modules import describe_classes, describe_modules

from ...record.changes import changed_modules, changes, settings_in
from .changed_record import comparable
from .differences import MAX_NAMES, changed_structure

_NUMBERS = re.compile(r"\[[^\]]*\d\.\d|\{|#")


def different_model(
    model: nn.Module,
    recorded: Mapping[str, Any],
    trainer: Mapping[str, Any],
    *,
    known: Mapping[int, str],
    names: Collection[str] = (),
) -> str:
    """Return what differs in the modules, their classes or the structure of a graph, or "".

    `recorded` is the record of the saved run, `trainer` the part of that name. `known` are objects that are
    described elsewhere, `names` are attributes that the step function reads.
    """
    try:
        own = {
            "model": {
                "modules": describe_modules(model),
                "classes": plain(describe_classes(model, known, names)),
            },
            "versions": versions(),
        }
        now, before = (one.get("model") or {} for one in comparable(own, recorded))
        pair = ({"modules": _without_numbers(one.get("modules") or {})} for one in (now, before))
        lines = [*changed_modules(*pair)]
        classes, saved = now["classes"], before.get("classes") or {}
        for name in (one for one in classes if one in saved):
            lines += changes(f"model.classes.{name}", *_known_in_both(classes[name], saved[name]))
        lines = lines or [*changed_structure(model, trainer)]
    except Exception as error:  # a record of an older version, or a class of the user
        log.debug("the model is not compared with the save: %s: %s", type(error).__name__, error)
        return ""
    more = [f"and {len(lines) - MAX_NAMES} more"] if len(lines) > MAX_NAMES else []
    return "; ".join([*lines[:MAX_NAMES], *more])


def _without_numbers(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of modules without weights and other numbers that may be random or learned.

    >>> _without_numbers({"0": "Noise(size=[3, 3], scale=[0.5, 0.25], name='a')"})
    {'0': "Noise(size=[3, 3], name='a')"}
    """
    found = {}
    for path, text in modules.items():
        kind, settings = settings_in(text)
        kept = ", ".join(one for one in settings if not _NUMBERS.search(one))
        # A long text is cut, and ends in a hash.
        found[path] = f"{kind}({kept})" if kept and "#" not in text else kind
    return found


def _known_in_both(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two descriptions with only what both have: a different step function reads different values."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return _code_of(one), _code_of(other)
    shared = [name for name in one if name in other]
    pairs = {name: _known_in_both(one[name], other[name]) for name in shared}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def _code_of(description: Any) -> Any:
    """Return the hash of the code of a class, which may be described with more than that."""
    return description.get("code", description) if isinstance(description, Mapping) else description
