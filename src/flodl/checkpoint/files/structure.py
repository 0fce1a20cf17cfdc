"""What a graph computes, as hashes that are stored with its weights and compared with a stored file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

_HASH = "structural_hash"
_PYTHON = "flodl_python"
_WITHOUT_CODE = "flodl_structure"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Structure:
    """The hashes of a graph: with the code of functions and classes, and without it.

    Bytecode depends on the minor version of Python, so files of another version are compared without code.
    `earlier` is the hash in files that do not say which version wrote them: without the code of classes.

    >>> own = Structure("abc", without_code="a", earlier="ab")
    >>> own.is_same_as(own.as_metadata()), own.is_same_as({"structural_hash": "ab"}), own.is_same_as({})
    (True, True, None)
    >>> own.is_same_as({"structural_hash": "xyz", "flodl_python": "3.1", "flodl_structure": "a"})
    True
    """

    hash: str
    without_code: str
    earlier: str

    def as_metadata(self) -> dict[str, str]:
        """Return what is stored in a file."""
        return {_HASH: self.hash, _PYTHON: PYTHON, _WITHOUT_CODE: self.without_code}

    def is_same_as(self, stored: Mapping[str, str]) -> bool | None:
        """Return whether the stored graph computes the same function; None if that is unknown."""
        if _HASH not in stored:
            return None
        if stored[_HASH] == self.hash:
            return True
        if _PYTHON not in stored:
            return stored[_HASH] == self.earlier
        return stored[_PYTHON] != PYTHON and stored.get(_WITHOUT_CODE) == self.without_code
