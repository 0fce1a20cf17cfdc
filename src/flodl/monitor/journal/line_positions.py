"""Where the lines that are not stored in a table are in the journal, as the index lists them."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ..events import KINDS

# The number, offset, length and kind of a line: little-endian, as in the tables.
_RECORD = struct.Struct("<4q")
_KIND_AT = 24


class LinePosition(NamedTuple):
    """The number of an entry, where its line is, and the position of its kind in `KINDS`."""

    id: int
    offset: int
    length: int
    kind: int


class LinePositions:
    """The positions of lines. They are searched without NumPy: importing it takes as long as many runs.

    >>> content = struct.pack("<8q", 1, 0, 90, KINDS.index("run_start"), 2, 90, 50, KINDS.index("epoch"))
    >>> LinePositions(content).of({"epoch"})
    [LinePosition(id=2, offset=90, length=50, kind=1)]
    """

    def __init__(self, content: bytes) -> None:
        # The last record may be incomplete: a crash interrupted it, or it is being written.
        self._content = content[: len(content) // _RECORD.size * _RECORD.size]

    @classmethod
    def read(cls, path: Path) -> LinePositions:
        """Return the positions in a file, or none if there is no such file."""
        return cls(path.read_bytes() if path.is_file() else b"")

    def all(self) -> list[LinePosition]:
        """Return the positions of all lines."""
        return [LinePosition._make(record) for record in _RECORD.iter_unpack(self._content)]

    def of(self, kinds: Collection[str]) -> list[LinePosition]:
        """Return the positions of the lines of some kinds."""
        codes = {code for code, kind in enumerate(KINDS) if kind in kinds}
        if not codes:
            return []
        # A long journal has millions of lines: a regular expression skips the other kinds quickly.
        lowest_bytes = self._content[_KIND_AT :: _RECORD.size]
        matches = re.finditer(b"[" + re.escape(bytes(codes)) + b"]", lowest_bytes)
        found = (
            LinePosition._make(_RECORD.unpack_from(self._content, match.start() * _RECORD.size))
            for match in matches
        )
        return [position for position in found if position.kind in codes]
