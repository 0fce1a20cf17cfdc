"""What a step can reach beside its parameters: modules, containers, closures, globals, random generators."""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# What `torch.nn.Module` itself keeps; of it, only what a forward may replace.
_TORCHS_OWN = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
ITEMS = (list, deque, dict, OrderedDict, defaultdict, Counter, set)
RANDOM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Longer ones are data: their items are not looked at.
MANY_ITEMS = 10_000
# flodl's own that a forward may change; the others belong to the training around the step.
_OURS = ("flodl.graph", "flodl.nn", "flodl.observe")
_NOTHING_INSIDE = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device})


@dataclass(frozen=True, eq=False)
class Binding:
    """A name of a module of Python, as a function sees it."""

    names: dict[str, Any]
    name: str


class Reachable:
    """Everything that may change where a step runs, by identity; `iterators` cannot be read twice.

    >>> counts = [0]
    >>> found = Reachable([({"of": counts}, "word", iter([1]))])
    >>> any(one is counts for one in found), len(found.iterators)
    (True, 1)
    """

    def __init__(self, roots: Iterable[Any], *, without: Iterable[Any] = ()) -> None:
        self.iterators: list[Any] = []
        self._found: dict[Hashable, Any] = {}
        self._passed: dict[Hashable, Any] = {id(one): one for one in without}
        waiting = list(roots)
        while waiting:
            waiting.extend(self._met(waiting.pop()))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found.values())

    def items(self) -> Iterable[tuple[Hashable, Any]]:
        """Give everything with a key that the same thing has in another walk."""
        return self._found.items()

    def _met(self, value: Any) -> Iterable[Any]:
        """Note a value that may change, and give what lies within it."""
        if type(value) in _NOTHING_INSIDE:
            return ()
        key = (id(value.names), value.name) if isinstance(value, Binding) else id(value)
        if key in self._found or key in self._passed:
            return ()
        if isinstance(value, type) or (_is_ours_alone(value) and not isinstance(value, Binding)):
            return ()
        inside = _inside(value)
        if inside is None:
            if hasattr(type(value), "__next__") and _is_of_the_user_or_builtin(type(value)):
                self.iterators.append(value)
            return ()
        (self._found if _may_change(value) else self._passed)[key] = value
        return inside


def _is_ours_alone(value: Any) -> bool:
    """Say whether a value belongs to flodl's own work around a step."""
    place = getattr(type(value), "__module__", "") or ""
    return place.startswith("flodl.") and not isinstance(value, nn.Module) and not place.startswith(_OURS)


def plain_attributes(value: Any) -> dict[str, Any]:
    """Give what an object keeps by name, without what torch keeps for its modules."""
    kept = vars(value)
    return {k: v for k, v in kept.items() if k not in _TORCHS_OWN} if isinstance(value, nn.Module) else kept


def has_attributes(value: Any) -> bool:
    """Say whether the attributes of an object are looked at: of modules, dataclasses, and the user's own."""
    if not hasattr(value, "__dict__") or isinstance(value, FunctionType | MethodType | Tensor):
        return False
    return isinstance(value, nn.Module | Optimizer) or is_dataclass(value) or _is_of_the_user(type(value))


def _may_change(value: Any) -> bool:
    return not isinstance(value, tuple | frozenset | FunctionType | MethodType | partial)


def _inside(value: Any) -> Iterable[Any] | None:
    """Give what lies within a value that is looked at; None for one that is not."""
    if isinstance(value, Tensor):
        return (value.grad,) if value.is_leaf and value.grad is not None else ()
    if isinstance(value, (*RANDOM, np.ndarray)):
        return ()
    if type(value) in ITEMS or isinstance(value, tuple | frozenset):
        if len(value) > MANY_ITEMS:
            return ()
        return list(value.values()) if isinstance(value, dict) else list(value)
    if isinstance(value, CellType):
        return _contents(value)
    if isinstance(value, Binding):
        return (value.names[value.name],)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, FunctionType):
        return _around(value) if _is_of_the_user(value) else None
    if has_attributes(value):
        return list(plain_attributes(value).values())
    return None


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that has no value yet
        return ()


def _around(function: FunctionType) -> list[Any]:
    """Give what a function takes from outside: closure, defaults, and the globals that it names."""
    found: list[Any] = [*(function.__closure__ or ()), *(function.__defaults__ or ())]
    found += (function.__kwdefaults__ or {}).values()
    names = function.__globals__
    found += [Binding(names, name) for name in _named(function.__code__) if name in names]
    return found


def _named(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_named, inner))


def _is_of_the_user(kind: Any) -> bool:
    return _is_users_place(getattr(kind, "__module__", None) or "")


def _is_of_the_user_or_builtin(kind: type) -> bool:
    torchs = kind.__module__.startswith("torch.utils.data")
    return kind.__module__ in ("builtins", "itertools") or torchs or _is_of_the_user(kind)


@cache
def _is_users_place(place: str) -> bool:
    """Say whether a module of Python is the user's own: no library, and of flodl only what runs in a step."""
    top = place.partition(".")[0]
    if top == "flodl":
        return place.startswith(_OURS)
    if top == "torch" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = getattr(sys.modules.get(place), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file
