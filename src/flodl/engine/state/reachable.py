"""Finds what a step reaches apart from its parameters: modules, containers, closures, globals, generators."""

from __future__ import annotations

import queue
import random
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import NotRestorable

# Attributes of `torch.nn.Module` itself, without those that a forward may change.
_TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
ITEMS = (list, deque, dict, OrderedDict, defaultdict, Counter, set)
BYTES = (bytearray, array)
RANDOM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Those of dunder names, and what the compiler notes at a function.
_PYTHON_ATTRIBUTES = ("__", "_torchdynamo", "_abc_impl")
# Longer containers are data: their items are not searched.
MANY_ITEMS = 10_000
# The packages of flodl whose objects a forward may change; the others belong to the training loop.
_USED_IN_STEPS = ("flodl.graph", "flodl.nn", "flodl.observe", "flodl.optim")
# Objects of torch that a step function with an optimizer of its own may change.
_OF_TORCH = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
_ATOMIC = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device})


@dataclass(frozen=True, eq=False)
class Binding:
    """A global variable of a Python module."""

    names: dict[str, Any]
    name: str


class Reachable:
    """Everything that a step may change, by identity; `iterators` are those that it could read only once.

    >>> counts = [0]
    >>> found = Reachable([({"of": counts}, "word", iter([1]))])
    >>> any(one is counts for one in found), len(found.iterators)
    (True, 1)
    """

    def __init__(self, roots: Iterable[Any], *, exclude: Iterable[Any] = (), most: int | None = None) -> None:
        self.iterators: list[Any] = []
        self._found: dict[Hashable, Any] = {}
        self._seen: dict[Hashable, Any] = {id(one): one for one in exclude}
        waiting, num_visited = list(roots), 0
        while waiting:
            waiting.extend(self._visit(waiting.pop()))
            num_visited += 1
            if most is not None and num_visited > most:
                raise NotRestorable(f"it reaches more than {most} objects")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found.values())

    def keys(self) -> Iterable[Hashable]:
        """Return the keys of all objects."""
        return self._found.keys()

    def items(self) -> Iterable[tuple[Hashable, Any]]:
        """Return all objects, with keys that are stable between searches."""
        return self._found.items()

    def _visit(self, value: Any) -> Iterable[Any]:
        """Record a value if it may change, and return its contents."""
        if type(value) in _ATOMIC:
            return ()
        key = (id(value.names), value.name) if isinstance(value, Binding) else id(value)
        if key in self._found or key in self._seen:
            return ()
        if isinstance(value, type) and not _is_own_class(value):
            return ()
        if _is_internal(value) and not isinstance(value, Binding):
            return ()
        contents = _contents(value)
        if contents is None:
            if isinstance(value, queue.SimpleQueue):
                self.iterators.append(value)
            if hasattr(type(value), "__next__") and _is_user_or_builtin_class(type(value)):
                self.iterators.append(value)
            return ()
        (self._found if _may_change(value) else self._seen)[key] = value
        return contents


def _is_internal(value: Any) -> bool:
    """Return whether a value belongs to flodl's own training loop."""
    name = getattr(type(value), "__module__", "") or ""
    return (
        name.startswith("flodl.") and not isinstance(value, nn.Module) and not name.startswith(_USED_IN_STEPS)
    )


def plain_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, a function or a class, without those of Python and torch."""
    if isinstance(value, type | FunctionType):
        return {name: each for name, each in vars(value).items() if not name.startswith(_PYTHON_ATTRIBUTES)}
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    if isinstance(value, nn.Module):
        attributes = {name: each for name, each in attributes.items() if name not in _TORCH_ATTRIBUTES}
    if slots := slots_of(value):
        attributes = dict(attributes)
        for name, one in slots.items():
            with suppress(AttributeError):  # it is not assigned yet
                attributes[name] = one.__get__(value)
    return attributes


def slots_of(value: Any) -> dict[str, MemberDescriptorType]:
    """Return the attributes of an object of the user that are in `__slots__`, with their descriptors."""
    kind: Any = type(value)
    return _slots_of_class(kind)


@cache
def _slots_of_class(kind: type) -> dict[str, MemberDescriptorType]:
    own = [vars(one) for one in kind.__mro__ if _is_user_code(one)]
    return {name: one for each in own for name, one in each.items() if isinstance(one, MemberDescriptorType)}


def has_attributes(value: Any) -> bool:
    """Return whether the attributes of an object are searched.

    They are those of modules, optimizers, schedulers, dataclasses and user-defined classes.
    """
    kind = type(value)
    if isinstance(value, type | FunctionType | MethodType | ModuleType | Tensor):
        return False
    if not hasattr(value, "__dict__"):
        return bool(slots_of(value))
    return isinstance(value, (*_OF_TORCH, queue.Queue)) or is_dataclass(value) or _is_user_code(kind)


def _is_own_class(kind: type) -> bool:
    """Return whether a class is user-defined, so that its attributes may be state."""
    return _is_user_code(kind) and not kind.__module__.startswith("flodl.")


def _may_change(value: Any) -> bool:
    return not isinstance(value, tuple | frozenset | MethodType | partial)


def _contents(value: Any) -> Iterable[Any] | None:
    """Return the contents of a value that is searched; None for one that is not."""
    if isinstance(value, Tensor):
        return (value.grad,) if value.is_leaf and value.grad is not None else ()
    if isinstance(value, (*RANDOM, *BYTES, np.ndarray)):
        return ()
    if type(value) in ITEMS or isinstance(value, tuple | frozenset):
        if len(value) > MANY_ITEMS:
            return ()
        return list(value.values()) if isinstance(value, dict) else list(value)
    if isinstance(value, CellType):
        return _cell_contents(value)
    if isinstance(value, Binding):
        return (value.names[value.name],)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, FunctionType):
        return [*_outer_values(value), *plain_attributes(value).values()] if _is_user_code(value) else None
    if isinstance(value, type):
        # An iterator of a class, such as a counter of its objects, is only read by code that names it.
        inner = (one for one in plain_attributes(value).values() if not hasattr(type(one), "__next__"))
        return [*value.__bases__, *(one for one in inner if not isinstance(one, FunctionType))]
    if has_attributes(value):
        return [type(value), *plain_attributes(value).values()]
    return None


def _cell_contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the variable is not assigned yet
        return ()


def _outer_values(function: FunctionType) -> list[Any]:
    """Return the values that a function takes from outside: closure, defaults, and globals by name."""
    found: list[Any] = [*(function.__closure__ or ()), *(function.__defaults__ or ())]
    found += (function.__kwdefaults__ or {}).values()
    variables, read = function.__globals__, _global_names(function.__code__)
    found += [Binding(variables, name) for name in read if name in variables]
    outer = [
        one for value in found if isinstance(value, CellType | Binding) for one in _contents(value) or ()
    ]
    return found + _members([one for one in outer if isinstance(one, ModuleType | type)], read)


def _members(owners: list[ModuleType | type], read: set[str]) -> list[Any]:
    """Return what code reads by name from modules and classes of the user: variables, functions."""
    found: list[Any] = []
    seen: set[int] = set()
    while owners:
        owner = owners.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, type):
            inner = (
                [each for name, each in vars(owner).items() if name in read] if _is_own_class(owner) else []
            )
            found += [getattr(each, "__func__", each) for each in inner]
        elif _is_user_module(owner.__name__) and not owner.__name__.startswith("flodl"):
            names = vars(owner)
            found += [Binding(names, name) for name in read if name in names]
            owners += [names[name] for name in read if isinstance(names.get(name), ModuleType | type)]
    return found


def _global_names(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _is_user_code(kind: Any) -> bool:
    name = getattr(kind, "__module__", None) or ""
    # A function from `exec` without a `__name__` has this module; Python's own have a different type.
    return (name == "builtins" and isinstance(kind, FunctionType)) or _is_user_module(name)


def _is_user_or_builtin_class(kind: type) -> bool:
    torchs = kind.__module__.startswith("torch.utils.data")
    return kind.__module__ in ("builtins", "itertools") or torchs or _is_user_code(kind)


@cache
def _is_user_module(name: str) -> bool:
    """Return whether a Python module is user code: not a library, and of flodl only what runs in a step."""
    top = name.partition(".")[0]
    if name == "__main__":
        # Its file may be that of a launcher, such as a debugger, which runs the script of the user.
        return True
    if top == "flodl":
        return name.startswith(_USED_IN_STEPS)
    if top == "torch" or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file
