"""The journal on disk: the state at the last save point, and the events since."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from flodl.core import DistributedError
from flodl.distributed.coordination import Coordinator, CoordinatorSettings, Event, from_journal, to_journal


class JournalFile:
    """Writes each event before it is handled. A confirmed save point becomes the new first line."""

    def __init__(self, path: Path, coordinator: Coordinator, *, may_replace: bool = False) -> None:
        if path.exists() and not may_replace:
            raise DistributedError(
                f"{path} is the journal of an earlier run. Resume that run with the state of its last save "
                "point (resume_state=...), or use another path."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._first = to_journal(coordinator)
        # Events since the save point that is not confirmed yet.
        self._since: list[str] | None = None
        self._file: TextIO = self._replace([self._first])

    def _replace(self, lines: list[str]) -> TextIO:
        part = self._path.with_name(f"{self._path.name}.part")
        file = part.open("w", encoding="utf-8")
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
        os.replace(part, self._path)
        return file

    def write(self, event: Event, now_ms: float) -> None:
        line = to_journal(event, now_ms)
        self._file.write(f"{line}\n")
        self._file.flush()
        if self._since is not None:
            self._since.append(line)

    def mark(self, coordinator: Coordinator) -> None:
        """A save point was requested now."""
        self._first, self._since = to_journal(coordinator), []

    def confirm(self) -> None:
        """The requested save point is on disk."""
        if self._since is not None:
            self._file.close()
            self._file = self._replace([self._first, *self._since])
            self._since = None

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a journal says about a run that ended early: its last save point, and how far it came."""

    state: dict[str, Any]
    saved_version: int
    reached_version: int
    lost_batches: int


def read_journal(path: Path, settings: CoordinatorSettings | None = None) -> Recovery:
    """Read the journal of a run that was killed.

    Resume from the state that was saved together with the weights; that of a save point which was written but
    not confirmed is newer than `state`.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    reached = from_journal(lines, settings)
    state = json.loads(lines[0])[1]
    return Recovery(state, state["version"], reached.version, reached.committed - state["committed"])
