"""Describe what a function imports in its body from files of the user.

Such a module may not be loaded yet, and nothing is imported here: its file is read instead.
"""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from types import CodeType
from typing import Any, NamedTuple

from ..plain import hide_secret
from .leaves import BASIC, short_text, text_hash
from .origin import is_user_source
from .reads import with_nested

_MAX_DEFINITIONS = 200
_MAX_FILE_BYTES = 1 << 20
_WITHOUT_EFFECT = frozenset({"EXTENDED_ARG", "CACHE", "NOP"})


class Import(NamedTuple):
    """A module, with a dot for each level of a relative import, and the names; none for the module itself."""

    module: str
    names: tuple[str, ...]


def describe_imports(code: CodeType, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions, classes and constants that a function imports in its body, by module and name.

    What they read in their file and in other files of the user is included.
    """
    found: dict[str, Any] = {}
    for one in _imports_of(code):
        module = _absolute(one.module, variables.get("__package__"))
        used = [name for inner in with_nested(code) for name in inner.co_names]
        _describe(module, one.names or (), used, found)
    return found


@lru_cache(maxsize=1024)
def _imports_of(code: CodeType) -> tuple[Import, ...]:
    found = []
    for inner in with_nested(code):
        if not any(constant is None or isinstance(constant, tuple) for constant in inner.co_consts):
            continue  # every import loads its names, or None
        instructions = [one for one in dis.get_instructions(inner) if one.opname not in _WITHOUT_EFFECT]
        for number, one in enumerate(instructions):
            if one.opname == "IMPORT_NAME":
                level, names = (before.argval for before in instructions[number - 2 : number])
                found.append(Import("." * level + str(one.argval or ""), tuple(names or ())))
    return tuple(found)


def _absolute(module: str, package: Any) -> str:
    try:
        return resolve_name(module, package if isinstance(package, str) else None)
    except ImportError:  # a relative import outside of a package
        return ""


def _describe(module: str, names: Collection[str], used: Collection[str], found: dict[str, Any]) -> None:
    """Add the definitions of a module; without `names`, those that are used as its attributes."""
    file = _file_of(module)
    if file is None:
        return
    known = _definitions(file)
    waiting = list(dict.fromkeys(names or [name for name in used if name in known]))
    own: dict[str, Any] = {}
    for name in waiting:  # grows
        if name not in known:
            _describe(f"{module}.{name}", (), used, found)
        elif name not in found.get(module, own) and sum(map(len, found.values())) < _MAX_DEFINITIONS:
            own = found.setdefault(module, own)
            one = known[name]
            if one.source is not None:
                inner = _absolute(one.source.module, _package_of(module, file))
                if inner and inner != module:
                    _describe(inner, one.source.names, used, found)
                continue
            own[name] = hide_secret(name, one.text)
            used = {*used, *one.reads}
            waiting += [read for read in one.reads if read in known]


class _Definition(NamedTuple):
    text: Any
    reads: tuple[str, ...] = ()
    source: Import | None = None


@lru_cache(maxsize=256)
def _definitions(file: str) -> dict[str, _Definition]:
    """Return what a file defines at its top level, as it was when it was first needed, which is as loaded."""
    try:
        if os.path.getsize(file) > _MAX_FILE_BYTES:
            return {}
        with open(file, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    return dict(_definitions_in(tree.body))


def _definitions_in(body: list[Any]) -> Iterator[tuple[str, _Definition]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, _Definition(f"{node.name} #{_code_hash(node)}", _names_in(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            yield from ((name, _Definition(_value(node.value), _names_in(node.value))) for name in names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for one in node.names:
                yield one.asname or one.name, _Definition("", (), Import(module, (one.name,)))
        elif isinstance(node, ast.Import):
            for one in node.names:
                name = one.asname or one.name.partition(".")[0]
                yield name, _Definition("", (), Import(one.name, ()))
        else:
            for part in ("body", "orelse", "finalbody"):  # if, try, with
                yield from _definitions_in(getattr(node, part, None) or [])


def _names_in(node: ast.AST) -> tuple[str, ...]:
    """Return the variables and the attributes in a definition."""
    nodes = list(ast.walk(node))
    found = [one.id for one in nodes if isinstance(one, ast.Name)]
    return tuple(dict.fromkeys([*found, *(one.attr for one in nodes if isinstance(one, ast.Attribute))]))


def _value(node: ast.expr) -> Any:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if value is not None and type(value) in BASIC else short_text(ast.unparse(node))


def _code_hash(node: ast.AST) -> str:
    """Return a hash of a definition without comments and docstrings."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = one.body[0] if one.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                one.body[:1] = []
    return text_hash(ast.dump(node))


def _file_of(module: str) -> str | None:
    """Return the file of a module of the user, loaded or not."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) if loaded is not None else _found_file(module)
    return file if isinstance(file, str) and is_user_source(file) else None


def _found_file(module: str) -> str | None:
    path, spec = None, None
    parts = module.split(".") if module else []
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and count < len(parts):
            return None
    return None if spec is None else spec.origin


def _package_of(module: str, file: str) -> str:
    return module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
