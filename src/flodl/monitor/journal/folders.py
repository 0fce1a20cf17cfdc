"""Find the runs in a folder, for example in that of a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flodl.core.files import expand_user

from .codec import FILE

_MAX_DEPTH = 3


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the folders with a journal in or below a folder, in the order of their names.

    What is inside a run belongs to it. Hidden folders and links to folders are skipped.
    """
    return [Path(path) for path in _runs(str(expand_user(folder)), _MAX_DEPTH)]


def _runs(folder: str, depth: int) -> Iterator[str]:
    if os.path.isfile(os.path.join(folder, FILE)):
        yield folder
    elif depth:
        try:
            inner = sorted(entry.path for entry in os.scandir(folder) if _is_searched(entry))
        except OSError:  # it was deleted, or belongs to someone else
            return
        for path in inner:
            yield from _runs(path, depth - 1)


def _is_searched(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
