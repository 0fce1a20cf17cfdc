"""A manifest in memory: maps and leaves, each knowing the file and line that it came from."""

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
        """Name the place as seen from a folder.

        >>> Origin(Path("/p/train/fdl.yml"), 7).relative_to(Path("/p"))
        'train/fdl.yml:7'
        """
        return f"{os.path.relpath(self.file, folder)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar, or a whole list; None is YAML's null."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Table:
    """A map, in its order."""

    entries: Mapping[str, Leaf | Table]
    origin: Origin = field(compare=False)

    def get(self, key: str) -> Leaf | Table | None:
        return self.entries.get(key)

    def value(self, key: str) -> Any:
        """Give what stands under a key as plain data; None where there is nothing."""
        found = self.entries.get(key)
        return None if found is None else plain(found)

    def table(self, key: str) -> Table:
        """Give the map under a key; an empty one where there is none."""
        found = self.entries.get(key)
        return found if isinstance(found, Table) else Table(MappingProxyType({}), self.origin)

    def at(self, path: tuple[str, ...]) -> Leaf | Table:
        """Give the deepest thing on a path."""
        inner = self.entries.get(path[0]) if path else None
        if inner is None:
            return self
        return inner.at(path[1:]) if isinstance(inner, Table) else inner


Node = Leaf | Table


def plain(node: Node) -> Any:
    """Give a document as dictionaries, lists and scalars."""
    if isinstance(node, Leaf):
        return node.value
    return {key: plain(value) for key, value in node.entries.items()}


def kind_in_words(value: Any) -> str:
    """Say what kind of value this is, in the words of YAML.

    >>> kind_in_words(3), kind_in_words(["a"])
    ('a number', 'a list')
    """
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a map"}
    return kinds.get(type(value), "nothing" if value is None else "text")


def leaves(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Give every leaf with its path; a map without entries counts as one."""
    if isinstance(node, Leaf):
        yield path, node
    elif not node.entries and path:
        yield path, Leaf({}, node.origin)
    else:
        for key, value in node.entries.items():
            yield from leaves(value, (*path, key))


def dotted(path: tuple[str, ...]) -> str:
    """Join the keys of a path; one that has a dot in it is quoted.

    >>> dotted(("commands", "a.b", "run"))
    'commands."a.b".run'
    """
    return ".".join(f'"{key}"' if "." in key or '"' in key or not key else key for key in path)
