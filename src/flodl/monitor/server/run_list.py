"""The list of runs that the server shows; a folder of runs, such as that of a sweep, may get new ones."""

from __future__ import annotations

import operator
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from ..journal import FILE, find_runs
from ..snapshot import Focus, compare
from .source import RunSource


class RunList(Sequence[RunSource]):
    """The runs by number. A number is never reused, even if the folder of its run is renamed or deleted."""

    def __init__(
        self,
        sources: Sequence[RunSource],
        *,
        folders: Sequence[Path] = (),
        focus: Focus | None = None,
    ) -> None:
        self._sources = list(sources)
        self._folders = folders
        self._focus = focus or Focus()
        self._lock = threading.Lock()
        self._comparing = threading.Lock()
        self._compared: tuple[list[dict[str, Any]], dict[str, Any]] = ([], {})

    @classmethod
    def of(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        folders: Sequence[Path] = (),
        focus: Focus | None = None,
    ) -> RunList:
        """Return the runs at some paths, and those in `folders`, which may have none yet."""
        single = [RunSource(path) for path in paths]
        found = cls(single, folders=folders, focus=focus)
        found.refresh()
        return found

    @overload
    def __getitem__(self, index: int) -> RunSource: ...
    @overload
    def __getitem__(self, index: slice) -> list[RunSource]: ...
    def __getitem__(self, index: int | slice) -> RunSource | list[RunSource]:
        return self._sources[index]

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def is_comparison(self) -> bool:
        """Whether the page compares runs, even if there is only one so far."""
        return bool(self._folders) or len(self) > 1

    def refresh(self) -> None:
        """Add runs that are new in the folders."""
        with self._lock:
            known = {source.path for source in self._sources}
            for folder in self._folders:
                paths = [run / FILE for run in find_runs(folder)]
                self._sources += [RunSource(path) for path in paths if path not in known]

    def comparison(self) -> dict[str, Any]:
        """Return all runs with their settings, their number in this list and the shortest clear name.

        Of a single run, which may train in this process, only the status is read.
        """
        if not self.is_comparison:
            return {"is_comparison": False, "runs": [self[0].status()]}
        with self._comparing:  # requests at the same time read the runs once
            self.refresh()
            present = [(at, source) for at, source in enumerate(self._sources) if source.path.exists()]
            summaries = [source.summary(self._focus.modes) for _, source in present]
            known, compared = self._compared
            if compared and len(known) == len(summaries) and all(map(operator.is_, known, summaries)):
                return compared
            compared = {**compare(summaries, self._focus), "is_comparison": True}
            names = distinct_names([source.folder for _, source in present])
            for run, name, (at, _) in zip(compared["runs"], names, present):
                run |= {"run": at, "folder": name}
            self._compared = (summaries, compared)
            return compared

    def name(self, index: int) -> str:
        """Return the shortest part of the path of a run that distinguishes it from the others."""
        return distinct_names([source.folder for source in self._sources])[index]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that distinguishes it from the others.

    >>> distinct_names([Path("/runs/a/s0"), Path("/runs/b/s0"), Path("/runs/b/s1")])
    ['a/s0', 'b/s0', 's1']
    """
    parts = [folder.parts for folder in dict.fromkeys(folders)]
    longest = max(map(len, parts), default=0)
    counts = [Counter(part[-length:] for part in parts) for length in range(1, longest)]

    def name(folder: Path) -> str:
        for length, count in enumerate(counts, start=1):
            end = folder.parts[-length:]
            if length < len(folder.parts) and count[end] == 1:
                return "/".join(end)
        return str(folder)

    return [name(folder) for folder in folders]
