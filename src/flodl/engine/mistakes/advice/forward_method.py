"""Advice for modules without a usable `forward`: none, one without self, or one that returns nothing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from flodl.core.paths import nearest

from ...batch.tree import leaves_of
from ..returned import returns_a_value
from .frames import frames_of

_MISSING = r'Module \[\w+\] is missing the required "forward" function'
_TOO_MANY = r"^([\w.<>]+)\(\) takes (\d+) positional arguments? but (\d+) were given"
_TORCH_FILES = str(Path(torch.__file__).parent)
# What the first parameter of a method is called, by those who do not write self.
_SELF = ("self", "s", "this", "me", "_")


def advice_for_forward(told: str, error: Exception, model: nn.Module, batch: tuple[Any, ...]) -> str:
    """Return what is wrong with the `forward` of a module, or "" if the error has another cause."""
    if re.search(_MISSING, told):
        frames = frames_of(error)
        return _missing(frames[0].f_locals.get("self") if frames else None)
    if found := re.match(_TOO_MANY, told):
        return _without_self(found[1], model) if int(found[3]) == int(found[2]) + 1 else ""
    if "NoneType" in told and all(leaf is not None for leaf in leaves_of(batch)):
        return _without_value(told, model)
    return ""


def _missing(module: Any) -> str:
    kind = type(module)
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return (
            f"A {kind.__name__} contains modules and cannot be called. Call its modules one by one, or use "
            "nn.Sequential."
        )
    own = [
        name for one in kind.__mro__ if one is not nn.Module for name, value in vars(one).items()
        if inspect.isfunction(value) and not name.startswith("__")
    ]  # fmt: skip
    lacks = f"The class {kind.__name__} has no method 'forward'"
    if close := nearest("forward", own, limit=1):
        return f"{lacks}, but one named {close[0]!r}. Rename it."
    created = getattr(kind.__init__, "__code__", None)
    inner = [one.co_name for one in created.co_consts if isinstance(one, CodeType)] if created else []
    if "forward" in inner:
        return f"{lacks}: 'forward' is defined inside __init__. Remove one level of its indentation."
    return f"{lacks}. Add one: def forward(self, x)."


def _without_self(function: str, model: nn.Module) -> str:
    """Return the advice for a `forward` whose first parameter is not the module."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    kind = next((one for one in kinds if getattr(one.forward, "__qualname__", "") == function), None)
    if kind is None:
        return ""
    names, created = [*inspect.signature(kind.forward).parameters], inspect.signature(kind.__init__)
    if not names or names[0] in (*_SELF, next(iter(created.parameters), "")):
        return ""
    given = ", ".join(names)
    return (
        f"The forward of {kind.__name__} has no self: its first parameter, {names[0]!r}, receives the "
        f"module. Write def forward(self, {given})."
    )


def _without_value(told: str, model: nn.Module) -> str:
    """Return the advice for a `forward` that returns None."""
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        code = getattr(kind.forward, "__code__", None)
        if code is None or code.co_filename.startswith(_TORCH_FILES) or returns_a_value(code):
            continue
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        return (
            f"The forward of {kind.__name__}, at {where}, returns None: it lacks a return statement with a "
            "value."
        )
    if "argument 'input' (position 1)" in told:
        return "Its input is None. If that is the output of the model, forward must return it in every case."
    return ""
