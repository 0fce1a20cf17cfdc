"""Describe the modules of a model: their classes, their settings and the code of those of the user."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from flodl.core.contents import Contents
from flodl.core.contents.class_constants import describe_constants
from flodl.core.contents.objects import (
    attributes_of,
    class_label,
    functions_of,
    module_settings,
    registered,
    states_of,
)
from flodl.core.plain import short_hash

MAX_MODULES = 500
_MAX_TEXT = 200
ROOT = "(root)"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def describe_modules(model: nn.Module) -> dict[str, str]:
    """Return the class and the settings of each module, by path.

    Modules that are equal in all layers have one entry, with "*" in place of the number.

    >>> describe_modules(nn.Sequential(nn.Dropout(0.1), nn.ReLU()))
    {'0': 'Dropout(p=0.1, inplace=False)', '1': 'ReLU(inplace=False)'}
    """
    texts: dict[str, str] = {}
    for path, module in model.named_modules():
        if text := _text(module):
            texts[path or ROOT] = text
    alike: dict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        alike[pattern_of(path)].add(text)
    counts: dict[str, int] = defaultdict(int)
    for path in texts:
        counts[pattern_of(path)] += 1
    found: dict[str, str] = {}
    for path, text in texts.items():
        pattern = pattern_of(path)
        found[pattern if len(alike[pattern]) == 1 and counts[pattern] > 1 else path] = text
    shown = dict(list(found.items())[:MAX_MODULES])
    if len(found) > MAX_MODULES:
        shown["…"] = str(Contents().of(list(found.items())[MAX_MODULES:]))
    return shown


def _text(module: nn.Module) -> str:
    """Return the class and the settings of a module; "" for a container without settings."""
    states = states_of(module)
    settings = {name: item for name, item in module_settings(module).items() if name not in states}
    shown = []
    for name, item in settings.items():
        described = None if item is None else Contents(max_parts=50).of(item)
        if described is not None:
            shown.append(f"{name}={repr(described) if isinstance(item, str) else described}")
    name = type(module).__qualname__.rpartition("<locals>.")[2]
    if not shown and next(module.children(), None) is not None:
        return name if type(module) is not nn.Sequential and type(module) is not nn.ModuleList else ""
    text = f"{name}({', '.join(shown)})" if shown else name
    return text if len(text) <= _MAX_TEXT else f"{text[:120]}… #{short_hash(text.encode())}"


def describe_classes(
    model: nn.Module, known: Mapping[int, str], names: Collection[str] = ()
) -> dict[str, Any]:
    """Describe the classes of the user among the modules: a hash of their code, and the values they read.

    Those are globals, and under "self" values of the class that all its objects share. `names` are read by
    others.
    """
    found: dict[str, Any] = {}
    stored: dict[type, set[str]] = {}
    for module in model.modules():
        own = {*attributes_of(module), *registered(module)}
        stored[type(module)] = stored.get(type(module), own) & own
    for kind, shadowed in stored.items():
        if next(functions_of(kind), None) is not None or names:
            contents = Contents(known)
            label = class_label(kind)
            reads = contents.of_class(kind)
            constants = describe_constants(kind, contents, names=names, stored=shadowed)
            reads |= {"self": constants} if constants else {}
            if not reads and next(functions_of(kind), None) is None:
                continue
            found[label.partition(" ")[0]] = {"code": label, **reads} if reads else label
    return found


def pattern_of(path: str) -> str:
    """Return a path with "*" in place of numbers.

    >>> pattern_of("layers.3.norm1")
    'layers.*.norm1'
    """
    return _NUMBER.sub("*", path)
