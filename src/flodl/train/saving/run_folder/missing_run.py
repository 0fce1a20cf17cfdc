"""What a folder has in place of a run: nothing, other runs, or a misspelled name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flodl.core.paths import did_you_mean, nearest

from .directory import BUNDLES

_MOST_RUNS = 5


def why_no_run(folder: Path) -> str:
    """Return why there are no saves in a folder, and which one may be meant, as the end of a sentence.

    >>> why_no_run(Path("no/such/folder"))
    'does not exist.'
    """
    runs = [one.name for one in _folders_in(folder) if (one / BUNDLES).is_dir()]
    if runs:
        shown = ", ".join(map(repr, runs[:_MOST_RUNS])) + ", …" * (len(runs) > _MOST_RUNS)
        return f"has no saves of its own, but contains {'a run' if len(runs) == 1 else 'runs'}: {shown}."
    with suppress(OSError):
        if folder.is_dir() and any(folder.iterdir()):
            return "has no saves."
    return f"{'is empty' if folder.is_dir() else 'does not exist'}. {similar_folders(folder)}".rstrip()


def similar_folders(folder: Path) -> str:
    """Return a question that names the folders next to this one with a similar name, or ""."""
    siblings = [one.name for one in _folders_in(folder.parent) if one.name != folder.name]
    return did_you_mean(nearest(folder.name, siblings))


def _folders_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(one for one in folder.iterdir() if one.is_dir())
    return []
