"""Runs that other processes write; new lines are found by polling the file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flodl.core import log

from ..journal import Entry, Reader, describe_damage, read_lines
from ..snapshot import Focus
from .run_list import RunList


class FollowedRuns:
    """The runs at some paths and in some folders. Only the page of a single run follows its entries."""

    def __init__(
        self,
        runs: Sequence[str | os.PathLike[str]],
        *,
        folders: Sequence[Path] = (),
        focus: Focus | None = None,
    ) -> None:
        self.runs = RunList.of(runs, folders=folders, focus=focus)
        self.last_id = self._offset = self._inode = 0
        if not self.runs.is_comparison:
            reader = Reader(self.runs[0].path)
            self.last_id, self._offset = reader.last_id, reader.num_bytes
            self._inode = reader.path.stat().st_ino

    def poll(self) -> list[Entry]:
        """Return the entries that were written to the first run since the last call."""
        path, last_id = self.runs[0].path, self.last_id
        written = path.stat()
        if written.st_size < self._offset or written.st_ino != self._inode:  # it was replaced
            self._offset, self._inode, last_id = 0, written.st_ino, 0
        batch = []
        for line in read_lines(path, self._offset, last_id=last_id, wait_for_next=True):
            self._offset = line.end
            if line.entry is not None and line.entry.id > self.last_id:
                self.last_id = line.entry.id
                batch.append(line.entry)
            elif line.is_damaged:
                log.warn("%s: skipped %s", path, describe_damage(path, [line.offset]))
        return batch
