"""A parsed manifest: tables and leaves, each with the file and line that it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """A line of a file."""

    file: Path
    line: int

    def relative_to(self, folder: Path) -> str:
        """Return `file:line`, with the file relative to a folder.

        >>> Origin(Path("/p/train/fdl.yml"), 7).relative_to(Path("/p"))
        'train/fdl.yml:7'
        """
        return f"{os.path.relpath(self.file, folder)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar or a whole list. None is YAML's null.

    `written` is the text of a number, such as "1.10" for 1.1, or a list of such texts; None for other values.
    """

    value: Any
    origin: Origin
    written: str | tuple[str | None, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A map that keeps the order of its keys."""

    entries: Mapping[str, Leaf | Table]
    origin: Origin = field(compare=False)

    def get(self, key: str) -> Leaf | Table | None:
        return self.entries.get(key)

    def value(self, key: str) -> Any:
        """Return the value of a key as plain data, or None."""
        found = self.entries.get(key)
        return None if found is None else plain(found)

    def table(self, key: str) -> Table:
        """Return the map under a key, or an empty one."""
        found = self.entries.get(key)
        return found if isinstance(found, Table) else Table(MappingProxyType({}), self.origin)

    def at(self, path: tuple[str, ...]) -> Leaf | Table:
        """Return the deepest node that exists on a path."""
        inner = self.entries.get(path[0]) if path else None
        if inner is None:
            return self
        return inner.at(path[1:]) if isinstance(inner, Table) else inner


Node = Leaf | Table


def plain(node: Node) -> Any:
    """Convert a document to dictionaries, lists and scalars."""
    if isinstance(node, Leaf):
        return node.value
    return {key: plain(value) for key, value in node.entries.items()}


def describe_type(value: Any) -> str:
    """Describe the type of a value in the terms of YAML.

    >>> describe_type(3), describe_type(["a"])
    ('a number', 'a list')
    """
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a map"}
    return names.get(type(value), "nothing" if value is None else "text")


def leaves(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield every leaf with its path. An empty map counts as a leaf."""
    if isinstance(node, Leaf):
        yield path, node
    elif not node.entries and path:
        yield path, Leaf({}, node.origin)
    else:
        for key, value in node.entries.items():
            yield from leaves(value, (*path, key))


def dotted(path: tuple[str, ...]) -> str:
    """Join the keys of a path with dots. A key that contains a dot is quoted.

    >>> dotted(("commands", "a.b", "run"))
    'commands."a.b".run'
    """
    return ".".join(f'"{key}"' if "." in key or '"' in key or not key else key for key in path)
