"""Describe the code of classes of the user: what a call of their objects runs, and nothing else."""

from __future__ import annotations

import dis
from argparse import Namespace
from collections.abc import Iterator
from enum import Enum
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from torch import nn

from flodl.core.contents import Contents
from flodl.core.contents.class_constants import describe_constants
from flodl.core.contents.objects import MISSING, computed_by, follow, functions_of
from flodl.core.contents.origin import is_user_class, is_user_file
from flodl.core.contents.reads import reads_of
from flodl.core.function_text import code_hash, operations

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


def method_words(kind: type, entries: tuple[str, ...]) -> list[str]:
    """Return words for the methods that are reached from `entries`; none for a class of a library.

    A method counts if a method that counts reads its name. Docstrings, comments, the names of variables, and
    methods that only set an object up or print it do not count.
    """
    methods = _reached(kind, entries)
    return [
        f"method {name} {word}"
        for name in sorted(methods)
        for one in methods[name]
        for word in _function_words(one, set())
    ]


def class_constants(kind: type, entries: tuple[str, ...]) -> dict[str, str]:
    """Describe the values of a class that methods read which are reached from `entries`, by name."""
    reached = [one for functions in _reached(kind, entries).values() for one in functions]
    # The source of a lambda may have been edited since it was loaded.
    contents = Contents(label=lambda function: f"function #{code_hash(function.__code__)}")
    described = describe_constants(kind, contents, functions=reached)
    return {name: repr(described[name]) for name in sorted(described)}


def _reached(kind: type, entries: tuple[str, ...]) -> dict[str, list[FunctionType]]:
    methods: dict[str, list[FunctionType]] = {}
    for name, function in functions_of(kind):
        methods.setdefault(name, []).append(_unwrapped(function))
    reached: set[str] = set()
    pending = [name for name in entries if name in methods]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += [read for one in methods[name] for read in _names(one.__code__) if read in methods]
    return {name: methods[name] for name in reached}


def _unwrapped(function: FunctionType) -> FunctionType:
    """Return the function inside decorators such as `torch.no_grad()`."""
    for _ in range(100):
        inner = getattr(function, "__wrapped__", None)
        if not isinstance(inner, FunctionType):
            break
        function = inner
    return function


def _function_words(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Describe a function with its defaults, and the constants and functions of the user that it reads."""
    if function in seen:
        return
    seen.add(function)
    yield repr(_code(function.__code__))
    yield from members_read(function)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield repr([value for value in defaults if isinstance(value, _CONSTANTS)])
    for name, value in sorted(_outside(function).items()):
        if isinstance(value, _CONSTANTS):
            yield f"reads {name} {value!r}"
        elif isinstance(value := computed_by(value), FunctionType) and is_user_file(
            _unwrapped(value).__code__.co_filename
        ):
            yield f"reads {name}"
            yield from _function_words(_unwrapped(value), seen)


def members_read(function: FunctionType) -> Iterator[str]:
    """Describe what a function reads by name of classes, settings and modules of the user.

    For a class, such as an enum, this includes any value; for other objects and modules, simple values.
    """
    outside = _outside(function)
    found = set()
    for read in reads_of(function.__code__):
        owner = outside.get(read.name) if read.scope in ("global", "free") else None
        is_class = isinstance(owner, type)
        if not (read.attributes or read.keys) or not (
            is_user_class(owner) if isinstance(owner, type) else _has_settings(owner)
        ):
            continue
        path, value, _ = follow(owner, read.attributes, read.keys)
        is_known = not isinstance(value, FunctionType | type) if is_class else _is_simple(value)
        if path and value is not MISSING and is_known:
            found.add(f"reads {read.name}.{'.'.join(path)} {Contents().of(value)!r}")
    yield from sorted(found)


def _has_settings(owner: Any) -> bool:
    """Return whether simple values of an object are settings: of a namespace, a dict, or the user's code."""
    if isinstance(owner, ModuleType):
        return is_user_file(getattr(owner, "__file__", None) or "")
    if isinstance(owner, nn.Module | FunctionType):
        return False
    return type(owner) in (SimpleNamespace, Namespace, dict) or is_user_class(type(owner))


def _is_simple(value: Any) -> bool:
    """Return whether a value is a number, a text, a member of an enum, None, or a tuple of such values.

    >>> _is_simple((1.0, "sum", (None, True))), _is_simple([1.0]), _is_simple(nn.ReLU())
    (True, False, False)
    """
    if isinstance(value, tuple):
        return all(map(_is_simple, value))
    return isinstance(value, (*_CONSTANTS, Enum))


def _outside(function: FunctionType) -> dict[str, Any]:
    """Return the globals and the values of the closure that a function reads, by name."""
    names = set(_globals(function.__code__)) & function.__globals__.keys()
    found = {name: function.__globals__[name] for name in names if not name.startswith("__")}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _code(code: CodeType) -> tuple[Any, ...]:
    return operations(code, _code), code.co_names


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function and the functions inside it."""
    for one in _with_nested(code):
        yield from one.co_names


def _globals(code: CodeType) -> Iterator[str]:
    for one in _with_nested(code):
        yield from (op.argval for op in dis.get_instructions(one) if op.opname == "LOAD_GLOBAL")


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)
