"""Describe a function: a lambda by its source, others by their name, with what both take from outside."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import linecache
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

_MAX_SOURCE = 200


def function_text(function: FunctionType, shown: Callable[[Any], str]) -> str:
    """Return the name of a function with a hash of its code, or the source of a lambda.

    Values of its closure and its defaults follow; `shown` describes them.

    >>> def schedule(step, base=0.1):
    ...     return base / (1 + step)
    >>> function_text(schedule, repr)
    'schedule #... (base=0.1)'
    """
    text = function_label(function)
    outside = [f"{key}={shown(value)}" for key, value in _outside(function)]
    return f"{text} ({', '.join(outside)})" if outside else text


def function_label(function: FunctionType) -> str:
    """Return the name of a function with a hash of its code, or the source of a lambda."""
    name = function.__qualname__.replace("<locals>.", "")
    source = _lambda_source(function) if function.__name__ == "<lambda>" else ""
    return source or f"{name} #{code_hash(function.__code__)}"


@lru_cache(maxsize=4096)
def code_hash(code: CodeType) -> str:
    """Return a hash of what a function does, without the names of files and the numbers of lines."""
    return hashlib.sha256(repr(_essence(code)).encode()).hexdigest()[:8]


def _essence(code: CodeType) -> tuple[Any, ...]:
    return operations(code, _essence), code.co_names, code.co_varnames, code.co_freevars


def operations(code: CodeType, nested: Callable[[CodeType], Any]) -> list[Any]:
    """Return the instructions with their constants: a docstring is a constant that none of them loads.

    `nested` describes the code of functions inside this one.
    """
    found: list[Any] = []
    extended = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2]):
        argument = extended << 8 | low
        if operation == dis.EXTENDED_ARG:
            extended = argument
            continue
        extended = 0
        if operation not in dis.hasconst:
            found.append((operation, argument))
            continue
        constant = code.co_consts[argument]
        found.append(nested(constant) if isinstance(constant, CodeType) else _stable(constant))
    return found


def _stable(constant: Any) -> Any:
    # The order of a set of strings differs in every process.
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of closure, plain globals and defaults, without modules and functions."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if not isinstance(value, ModuleType | type) and not callable(value):
            yield name, value
    code, variables = function.__code__, function.__globals__
    for name in code.co_names:
        if type(variables.get(name)) in (bool, int, float, str) and not name.startswith("__"):
            yield name, variables[name]
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(positional[len(positional) - len(defaults) :], defaults)
    yield from (function.__kwdefaults__ or {}).items()


def _lambda_source(function: FunctionType) -> str:
    """Return the source of a lambda, or "" if it is not known or long."""
    code = function.__code__
    columns = {(line, column) for line, _, column, _ in code.co_positions() if column is not None}
    try:
        file = inspect.getsourcefile(function)
        nodes = [] if file is None else _lambdas("".join(linecache.getlines(file)))
    except (TypeError, SyntaxError, ValueError, RecursionError):
        return ""
    found = [node for node in nodes if node.lineno == code.co_firstlineno and _start(node.body) in columns]
    if len(found) != 1:
        return ""
    source = " ".join(ast.unparse(found[0]).split())
    return source if len(source) <= _MAX_SOURCE else ""


def _start(node: ast.expr) -> tuple[int, int]:
    """Return the line and the column of an expression, in bytes as in a code object."""
    return node.lineno, node.col_offset


@lru_cache(maxsize=8)
def _lambdas(source: str) -> list[ast.Lambda]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
