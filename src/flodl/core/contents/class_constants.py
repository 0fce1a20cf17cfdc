"""The values of a class that its methods read through `self`, `type(self)` or `cls`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import FunctionType
from typing import Any

from ..plain import hide_secret
from .describer import Contents
from .objects import (
    MISSING,
    assigned_in,
    cached_in,
    follow,
    functions_of,
    is_mutated_by,
)
from .reads import uses_of

_MAX_CONSTANTS = 64


def describe_constants(
    kind: type,
    contents: Contents,
    *,
    functions: Iterable[FunctionType] | None = None,
    names: Collection[str] = (),
    stored: Collection[str] = (),
) -> dict[str, Any]:
    """Describe the values that a class of the user and its bases define and that its methods read, by name.

    `functions` are the methods that count, by default all. `names` count in any case, `stored` do not: the
    objects have values of their own. What the methods assign or fill is state, and is left out.

    >>> class Net:
    ...     __module__ = "__main__"
    ...     scale, unused, calls = 2.0, 3.0, 0
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x * self.scale
    >>> describe_constants(Net, Contents())
    {'scale': 2.0}
    """
    methods = list(functions_of(kind))
    own = [function for _, function in methods]
    names_of_methods = {name for name, _ in methods}
    states = assigned_in(kind) | cached_in(kind) | set(_filled(kind, own))
    counted = own if functions is None else functions
    wanted = [read for one in counted for read in _read_through_self(one)]
    found: dict[str, Any] = {}
    for attributes in (*wanted, *((name,) for name in sorted(names))):
        name = attributes[0]
        if name in states or name in stored or name.startswith("__") or len(found) >= _MAX_CONSTANTS:
            continue
        path, value, _ = follow(kind, attributes)
        is_method = isinstance(value, FunctionType) and len(path) == 1 and name in names_of_methods
        if path and value is not MISSING and not is_method:
            found.setdefault(".".join(path), contents.of(hide_secret(path[-1], value)))
    return found


def _read_through_self(function: FunctionType) -> Iterator[tuple[str, ...]]:
    """Yield the attributes that a method reads of its first argument, and of its type."""
    read, _ = uses_of(function.__code__)
    for one in read:
        attributes = one.attributes[1:] if one.attributes[:1] == ("__class__",) else one.attributes
        if one.scope == "own" and attributes:
            yield attributes


def _filled(kind: type, functions: list[FunctionType]) -> Iterator[str]:
    """Yield the containers of a class that its methods change, as `append` changes a list."""
    for function in functions:
        for attributes in _read_through_self(function):
            if len(attributes) == 2 and is_mutated_by(follow(kind, attributes[:1])[1], attributes[1]):
                yield attributes[0]
