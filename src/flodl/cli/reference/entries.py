"""Reference entries: classes and functions with signatures, one-line docs, methods and examples."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .source import Found, Source

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Member:
    """A method or constructor of a class."""

    name: str
    signature: str
    doc: str
    returns_self_type: bool = False
    is_constructor: bool = False


@dataclass(frozen=True)
class Entry:
    """One public name."""

    name: str  # as users write it: flodl.Graph, flodl.optim.apply
    kind: str  # class or function
    category: str  # the package that defines it
    file: str
    line: int
    signature: str
    doc: str
    bases: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    examples: tuple[str, ...] = field(default=(), repr=False)
    aliases: tuple[str, ...] = ()  # other packages that export the same name

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON data."""
        rows: dict[str, list[dict[str, str]]] = {"constructors": [], "builder_methods": [], "methods": []}
        for member in self.members:
            if member.is_constructor:
                group = "constructors"
            else:
                group = "builder_methods" if member.returns_self_type else "methods"
            rows[group].append({"name": member.name, "sig": member.signature, "doc": member.doc})
        common = {
            "name": self.name,
            "category": self.category,
            "file": self.file,
            "line": self.line,
            "doc": self.doc,
            "sig": self.signature,
            "examples": list(self.examples),
        }
        return {**common, "traits": list(self.bases), **rows} if self.kind == "class" else common


def read_entries(root: Path) -> list[Entry]:
    """Return every public name of the package in a folder, each once, under its shortest name.

    >>> import flodl
    >>> entries = read_entries(Path(flodl.__file__).parent)
    >>> next(entry.signature for entry in entries if entry.name == "flodl.manual_seed")
    'manual_seed(seed: int) -> None'
    """
    source = Source(root)
    entries: dict[tuple[str, int], Entry] = {}
    for module in [source.package, *source.packages()]:
        for name in source.public_names(module):
            found = source.find(module, name)
            if found:
                location = (str(found.file), found.node.lineno)
                known = entries.setdefault(location, _entry(source, f"{module}.{name}", found))
                if known.name != f"{module}.{name}":
                    aliases = (*known.aliases, f"{module}.{name}")
                    entries[location] = replace(known, aliases=aliases)
    return sorted(entries.values(), key=lambda entry: (entry.category, entry.name.split(".")[-1].lower()))


def _entry(source: Source, name: str, found: Found) -> Entry:
    node = found.node
    parts = found.module.split(".")
    is_class = isinstance(node, ast.ClassDef)
    members = tuple(_members(source, found)) if is_class else ()
    constructor = next((member.signature for member in members if member.name == node.name), f"{node.name}()")
    return Entry(
        name=name,
        kind="class" if is_class else "function",
        category=parts[1] if parts[1:] else parts[0],
        file=str(found.file.relative_to(source.root.parent)),
        line=node.lineno,
        signature=constructor if isinstance(node, ast.ClassDef) else _signature(node),
        doc=_first_line(node),
        bases=tuple(map(ast.unparse, node.bases)) if isinstance(node, ast.ClassDef) else (),
        members=members,
        examples=_examples(node),
    )


def _members(source: Source, found: Found) -> Iterator[Member]:
    """Yield the public methods of a class once each, including those of base classes in this package."""
    seen: set[str] = set()
    for owner in _with_bases(source, found):
        assert isinstance(owner.node, ast.ClassDef)
        if owner is found and _is_dataclass(owner.node):
            yield Member(owner.node.name, _dataclass_signature(owner.node), "", is_constructor=True)
            seen.add("__init__")
        for node in owner.node.body:
            if not isinstance(node, _FUNCTION) or node.name in seen:
                continue
            if node.name == "__init__":
                signature = _signature(node, name=found.node.name, skip_first=True, result="")
                yield Member(found.node.name, signature, _first_line(node), is_constructor=True)
            elif not node.name.startswith("_") and not _decorated(node, "setter", "overload"):
                yield _method(node, found.node.name)
            seen.add(node.name)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Member:
    result = ast.unparse(node.returns).strip("'\"") if node.returns else ""
    is_own_type = result in ("Self", owner)
    if _decorated(node, "property", "cached_property"):
        return Member(node.name, f"{node.name}: {result}" if result else node.name, _first_line(node))
    is_static = _decorated(node, "staticmethod")
    signature = _signature(node, skip_first=not is_static)
    is_constructor = is_own_type and _decorated(node, "classmethod", "staticmethod")
    return Member(
        node.name, signature, _first_line(node), returns_self_type=is_own_type, is_constructor=is_constructor
    )


def _with_bases(source: Source, found: Found, depth: int = 8) -> Iterator[Found]:
    yield found
    if isinstance(found.node, ast.ClassDef) and depth:
        for base in found.node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            parent = source.find(found.module, inner.id) if isinstance(inner, ast.Name) else None
            if parent and isinstance(parent.node, ast.ClassDef):
                yield from _with_bases(source, parent, depth - 1)


def _signature(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    *,
    name: str | None = None,
    skip_first: bool = False,
    result: str | None = None,
) -> str:
    arguments = node.args
    first = [*arguments.posonlyargs, *arguments.args][:1] if skip_first else []
    shown = ast.arguments(
        posonlyargs=[argument for argument in arguments.posonlyargs if argument not in first],
        args=[argument for argument in arguments.args if argument not in first],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and result is None else result or ""
    return f"{name or node.name}({ast.unparse(shown)}){returns}"


def _is_dataclass(node: ast.ClassDef) -> bool:
    """Return whether the fields of a class define its constructor."""
    decorated = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    return decorated or any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)


def _dataclass_signature(node: ast.ClassDef) -> str:
    fields = [
        statement
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not ast.unparse(statement.annotation).startswith("ClassVar")
    ]
    return f"{node.name}({', '.join(map(ast.unparse, fields))})"


def _decorated(node: ast.FunctionDef | ast.AsyncFunctionDef, *names: str) -> bool:
    return any(ast.unparse(decorator).split(".")[-1] in names for decorator in node.decorator_list)


def _first_line(node: ast.AST) -> str:
    assert isinstance(node, ast.ClassDef | _FUNCTION)
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _examples(node: ast.AST) -> tuple[str, ...]:
    """Return the examples of a docstring as they would be typed."""
    assert isinstance(node, ast.ClassDef | _FUNCTION)
    found = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
    text = "".join(example.source for example in found)
    return (text,) if text else ()
