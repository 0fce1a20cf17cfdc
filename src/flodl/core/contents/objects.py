"""The attributes of an object and the functions of a class, read without calling any user code."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, partial, partialmethod, singledispatchmethod
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from ..function_text import code_hash
from .origin import is_user_class, is_user_file, is_user_module
from .reads import uses_of

MISSING = object()
_CONTAINERS = (dict, list, set, bytearray, deque)
_MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert"}
    | {"pop", "popitem", "popleft", "remove", "setdefault", "update"}
)
# Methods that set an object up, rather than use it.
_SETS_UP = re.compile(r"__(init|post_init|setstate|new)|_*(set|configure|build|init|reset|load|add|with)")
_MAX_WRAPPERS = 16
_CACHES = type(cache(len))
_REGISTRIES = ("_modules", "_parameters", "_buffers")


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that are stored in an object: its `__dict__` and its slots.

    >>> class Point:
    ...     __slots__ = ("x", "y")
    >>> point = Point()
    >>> point.x = 1
    >>> attributes_of(point)
    {'x': 1}
    """
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        for name, slot in kind.__dict__.items() if "__slots__" in kind.__dict__ else ():
            if type(slot) is MemberDescriptorType:
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # not assigned
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found
    return {**found, **own} if type(own) is dict else found


def is_module(value: Any) -> bool:
    """Return whether a value is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def module_settings(module: Any) -> dict[str, Any]:
    """Return the attributes of a module of torch, without parameters, buffers, submodules and internals.

    Those of a graph are described by its structural hash.
    """
    kind = type(module)
    if any(one.__module__.startswith("flodl.graph") for one in kind.__mro__) and not is_user_class(kind):
        return {}
    internal = _internals()
    own = {name: item for name, item in attributes_of(module).items() if name not in internal}
    if not is_user_class(kind):
        own = {name: item for name, item in own.items() if not name.startswith("_")}
    return own


@cache
def _internals() -> frozenset[str]:
    """Return what every module has; "training" is a mode, which is compared on its own."""
    return frozenset({*attributes_of(sys.modules["torch"].nn.Module()), "training"})


def registered(module: Any) -> dict[str, Any]:
    """Return the parameters, buffers and submodules of a module of torch that are its own."""
    stored = attributes_of(module)
    return {
        name: item
        for registry in reversed(_REGISTRIES)
        for name, item in dict(stored.get(registry) or {}).items()
        if item is not None
    }


def functions_of(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that a class of the user and its bases of the user define, by name."""
    for one in kind.__mro__:
        if is_user_class(one):
            for name, item in one.__dict__.items():
                yield from ((name, function) for function in _functions(item))


def _functions(item: Any) -> Iterator[FunctionType]:
    if isinstance(item, property):
        found: tuple[Any, ...] = (item.fget, item.fset)
    elif isinstance(item, singledispatchmethod):
        found = tuple(map(computed_by, item.dispatcher.registry.values()))
    elif isinstance(item, partialmethod):
        found = (computed_by(item.func),)
    else:
        found = (computed_by(item),)
    yield from (_unwrapped(one) for one in found if isinstance(one, FunctionType))


def computed_by(item: Any) -> Any:
    """Return the function behind a static or class method, a cached property or a cache; others as they are.

    >>> computed_by(cache(is_module)) is is_module
    True
    """
    if isinstance(item, staticmethod | classmethod):
        item = item.__func__
    elif isinstance(item, cached_property):
        item = item.func
    for _ in range(_MAX_WRAPPERS):
        if not isinstance(item, _CACHES):
            break
        item = vars(item).get("__wrapped__")
    return item


def _unwrapped(function: FunctionType) -> FunctionType:
    """Return the function of the user inside a decorator of a library, such as `torch.no_grad`."""
    inner: Any = function
    for _ in range(_MAX_WRAPPERS):
        if not isinstance(inner, FunctionType):
            return function
        if is_user_file(inner.__code__.co_filename):
            return inner
        inner = vars(inner).get("__wrapped__")
    return function


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the default values of the parameters of a function.

    >>> defaults_of(lambda x, size=3, *, rate=0.1: x)
    {'size': 3, 'rate': 0.1}
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    named = zip(positional[len(positional) - len(defaults) :], defaults)
    return {**dict(named), **(function.__kwdefaults__ or {})}


def constants_of(kind: type) -> dict[str, Any]:
    """Return the values that a class of the user and its bases of the user define."""
    return {
        name: _as_partial(item)
        for one in reversed(kind.__mro__)
        if is_user_class(one)
        for name, item in one.__dict__.items()
        if not name.startswith("__") and not isinstance(item, type)
        if isinstance(item, partialmethod) or not hasattr(type(item), "__get__")
        if not name.startswith("_abc_")
    }


def _as_partial(item: Any) -> Any:
    if isinstance(item, partialmethod) and callable(item.func):
        return partial(item.func, *item.args, **item.keywords)
    return item


def assigned_in(kind: type) -> set[str]:
    """Return the attributes that the methods of a class assign, of an object or of the class.

    Those that only set an object up count if they assign an attribute of the class: a number of objects.
    """
    found: set[str] = set()
    names = {"__class__", *(one.__name__ for one in kind.__mro__)}
    for name, function in functions_of(kind):
        _, assigned = uses_of(function.__code__)
        for one in assigned:
            is_of_class = one.attributes[:1] == ("__class__",) or (one.scope != "own" and one.name in names)
            attributes = one.attributes[1:] if one.attributes[:1] == ("__class__",) else one.attributes
            if attributes and (is_of_class or (one.scope == "own" and not _SETS_UP.match(name))):
                found.add(attributes[0])
    return found


def states_of(value: Any) -> frozenset[str]:
    """Return the attributes that the methods of an object change while it is used: a counter, a cache."""
    kind = type(value)
    found = assigned_in(kind) | cached_in(kind)
    for name, function in functions_of(kind):
        if not _SETS_UP.match(name):
            read, _ = uses_of(function.__code__)
            calls = [one.attributes for one in read if one.scope == "own" and len(one.attributes) == 2]
            stored = attributes_of(value) if calls else {}
            found |= {held for held, called in calls if is_mutated_by(stored.get(held), called)}
    return frozenset(found)


def cached_in(kind: type) -> set[str]:
    """Return the cached properties of a class: an object has their values once they were read."""
    own = [one for one in kind.__mro__ if is_user_class(one)]
    return {name for one in own for name, item in one.__dict__.items() if isinstance(item, cached_property)}


def class_label(kind: type) -> str:
    """Return the name of a class; that of the user with a hash of its code."""
    name = kind.__qualname__.rpartition("<locals>.")[2]
    content = [f"{key} {code_hash(one.__code__)}" for key, one in functions_of(kind)]
    # The names of files in generated methods (of a dataclass) are not part of the hash.
    return f"{name} #{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}" if content else name


class Attribute(NamedTuple):
    """An attribute, and the object that it receives as its first argument if it is a method or property."""

    value: Any
    owner: Any = MISSING


def read_attribute(value: Any, name: str) -> Attribute | None:
    """Return an attribute without calling anything; None if a library defines it, or if it is unknown.

    A property is returned as the function that computes it.
    """
    if isinstance(value, ModuleType):
        is_known = is_user_module(value) and name in vars(value)
        return Attribute(vars(value)[name]) if is_known else None
    if isinstance(value, type):
        return _in_class(value, name, MISSING)
    stored = attributes_of(value)
    if is_module(value):
        stored = {**stored, **registered(value)}
    if name in stored and name not in cached_in(type(value)):
        return Attribute(stored[name])
    return _in_class(type(value), name, value)


def _in_class(kind: type, name: str, owner: Any) -> Attribute | None:
    for one in kind.__mro__:
        if name in one.__dict__:
            item = one.__dict__[name] if is_user_class(one) else None
            if isinstance(item, staticmethod):
                return Attribute(item.__func__)
            if isinstance(item, classmethod):
                return Attribute(item.__func__, kind)
            if isinstance(item, property) and owner is not MISSING:
                return Attribute(item.fget, owner)
            item = _as_partial(computed_by(item))
            if isinstance(item, FunctionType):
                return Attribute(item, owner)
            return None if item is None or hasattr(type(item), "__get__") else Attribute(item)
    return None


def is_mutated_by(value: Any, name: str) -> bool:
    """Return whether a method changes a container, as `append` changes a list."""
    return isinstance(value, _CONTAINERS) and name in _MUTATORS


def follow(
    value: Any, attributes: Sequence[str], keys: Sequence[str] = ()
) -> tuple[tuple[str, ...], Any, Any]:
    """Follow attributes and keys as far as values are stored; return the path, the value and its owner."""
    path: tuple[str, ...] = ()
    for name in attributes:
        found = read_attribute(value, name)
        is_method = found is not None and isinstance(found.value, FunctionType) and found.owner is not MISSING
        if found is not None and not is_method and name in states_of(value):
            return path, MISSING, MISSING
        if found is None:
            is_state = isinstance(value, ModuleType) or is_mutated_by(value, name)
            return path, MISSING if is_state else value, MISSING
        path, value = (*path, name), found.value
        if isinstance(value, FunctionType):
            return path, value, found.owner
    for key in keys:
        if type(value) is not dict or key not in value:
            break
        path, value = (*path, key), value[key]
    return path, value, MISSING
