"""What a graph computes, as hashes that are stored with its weights and compared with a stored file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

_HASH = "structural_hash"
_PYTHON = "flodl_python"
_WITHOUT_CODE = "flodl_structure"
_PLACES = "flodl_places"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Structure:
    """The hashes of a graph: with the code of functions and classes, and without it.

    Bytecode depends on the minor version of Python, so files of another version are compared without code.
    `earlier` is the hash in files that do not say which version wrote them: without the code of classes.
    The hashes leave names out, but weights are loaded by name: `places` says which node each name belongs to.
    Older files do not have it.

    >>> own = Structure("abc", without_code="a", earlier="ab")
    >>> own.is_same_as(own.as_metadata()), own.is_same_as({"structural_hash": "ab"}), own.is_same_as({})
    (True, True, None)
    >>> own.is_same_as({"structural_hash": "xyz", "flodl_python": "3.1", "flodl_structure": "a"})
    True
    >>> exchanged = Structure("abc", without_code="a", earlier="ab", places={"first": "2", "second": "1"})
    >>> own = Structure("abc", without_code="a", earlier="ab", places={"first": "1", "second": "2"})
    >>> exchanged.is_same_as(own.as_metadata()), exchanged.moved_names(own.as_metadata())
    (False, ['first', 'second'])
    """

    hash: str
    without_code: str
    earlier: str
    places: Mapping[str, str] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, str]:
        """Return what is stored in a file."""
        hashes = {_HASH: self.hash, _PYTHON: PYTHON, _WITHOUT_CODE: self.without_code}
        return {**hashes, _PLACES: json.dumps(dict(self.places))} if self.places else hashes

    def is_same_as(self, stored: Mapping[str, str]) -> bool | None:
        """Return whether the stored graph computes the same function; None if that is unknown."""
        if _HASH not in stored:
            return None
        return self._has_hash_of(stored) and not self.moved_names(stored)

    def moved_names(self, stored: Mapping[str, str]) -> list[str]:
        """Return the names that belong to other nodes of the stored graph, which has the same hash."""
        if not self._has_hash_of(stored):
            return []
        try:
            places = json.loads(stored.get(_PLACES, "{}"))
        except (ValueError, RecursionError):
            return []
        if not isinstance(places, dict):
            return []
        return [name for name, place in self.places.items() if places.get(name, place) != place]

    def _has_hash_of(self, stored: Mapping[str, str]) -> bool:
        if _HASH not in stored:
            return False
        if stored[_HASH] == self.hash:
            return True
        if _PYTHON not in stored:
            return stored[_HASH] == self.earlier
        return stored[_PYTHON] != PYTHON and stored.get(_WITHOUT_CODE) == self.without_code


def moved_text(names: list[str]) -> str:
    """Describe names that belong to other nodes than in the stored graph.

    >>> moved_text(["first", "second"])
    "its weights 'first' and 'second' belong to other nodes of this graph"
    """
    listed = " and ".join(map(repr, names)) if len(names) < 3 else f"{names[0]!r} and {len(names) - 1} others"
    return (
        f"its weights {listed} belong to {'another node' if len(names) == 1 else 'other nodes'} of this graph"
    )
