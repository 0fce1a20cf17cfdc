"""Why a path has no journal, and which one may be meant."""

from __future__ import annotations

from pathlib import Path

from flodl.core.errors import MonitorError
from flodl.core.paths import did_you_mean, nearest

from .codec import FILE

_MOST_FOLDERS = 3
_EXPECTED = (
    "Pass the folder of a run, which contains a journal.jsonl: the checkpoint_dir of a Trainer, or the "
    "run_dir of a Monitor."
)
_WITHOUT = (
    "was trained with monitor=False, or the file was removed, so there is nothing to show. Without "
    "monitor=False, a journal is recorded from the next start on."
)


def no_journal(path: Path) -> MonitorError:
    """Return the error for a path that is neither a journal nor a folder with one.

    >>> print(no_journal(Path("runs/frist")))
    'runs/frist' does not exist. Pass the folder of a run, which contains a journal.jsonl: ...
    """
    told = repr(str(path))
    if not path.is_dir():
        siblings = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        return MonitorError(
            f"{told} does not exist. {did_you_mean(nearest(path.name, siblings)) or _EXPECTED}"
        )
    for folder in (path.parent, path.parent.parent):
        if (folder / FILE).is_file() or _is_of_trainer(folder):
            return MonitorError(f"{told} is a folder of a run. Pass the run itself: {str(folder)!r}.")
    if _is_of_trainer(path):
        return MonitorError(
            f"{told} is the folder of a run of a Trainer, and has no journal.jsonl: the run {_WITHOUT}"
        )
    inside = sorted(one for one in path.iterdir() if one.is_dir())
    if nearby := [str(one) for one in inside if (one / FILE).is_file()]:
        return MonitorError(
            f"{told} has no journal. Its folders {_listed(nearby)} have one: pass one of them."
        )
    if unrecorded := [one.name for one in inside if _is_of_trainer(one)]:
        runs = "a run" if len(unrecorded) == 1 else "runs"
        return MonitorError(
            f"{told} contains {runs} without a journal.jsonl ({_listed(unrecorded)}): each {_WITHOUT}"
        )
    return MonitorError(f"{told} has no journal. {_EXPECTED}")


def _is_of_trainer(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "bundles").is_dir()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_FOLDERS} more" if len(names) > _MOST_FOLDERS else ""
    return f"{', '.join(names[:_MOST_FOLDERS])}{more}"
