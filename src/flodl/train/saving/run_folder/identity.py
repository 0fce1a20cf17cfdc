"""The identity of a run: config.json and every bundle have it, so that a bundle of another run is noticed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flodl.core import TrainError

# Tells this process from others in a bundle.
PROCESS = uuid.uuid4().hex[:12]


class RunIdentity:
    """The id of the run in a folder, which config.json records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._id = ""

    def of(self, config: bytes | None) -> str:
        """Return the id in a config.json; without one, that of an adopted bundle, or else a new one."""
        self._id = _recorded(config) or self._id or uuid.uuid4().hex[:12]
        return self._id

    def saved(self) -> dict[str, str] | None:
        """Return what a bundle records; None before the run has begun."""
        return {"id": self._id, "folder": str(self._folder), "process": PROCESS} if self._id else None

    def compare(self, config: bytes | None, trainer: Mapping[str, Any]) -> list[str]:
        """Describe a bundle of another run by its part `trainer`; a folder without an id adopts its id."""
        saved = _mapping_in(trainer, "run")
        if not saved:
            return []  # written by an older version of flodl
        own, found = _recorded(config), saved.get("id")
        other = found if isinstance(found, str) else ""
        if not own:
            self._id = other
        if not own or own == other:
            return []
        return [
            f"the bundle was copied from another run ({other}, in {str(saved.get('folder'))!r}) into the "
            f"folder of this one ({own}, in {str(self._folder)!r}), which continues with its weights; to "
            "start a new run from a bundle, use a new checkpoint_dir and pass the bundle as resume=…"
        ]


def check_seed(folder: Path, saved: Mapping[str, Any], *, seed: int, part: str = "data") -> None:
    """Raise if a finished run was saved by another trainer of this process with another seed: a loop over
    seeds, in which only the first run would be trained.

    The saved seed is that of the loader, in the part "data", or that of the trainer, in the part "config".

    >>> saved = {"trainer": {"run": {"process": PROCESS}}, "data": {"seed": 0}}
    >>> check_seed(Path("run"), saved, seed=0)
    >>> check_seed(Path("run"), saved, seed=1)
    Traceback (most recent call last):
    flodl.core.errors.TrainError: 'run' contains a finished run that another Trainer of this program ...
    """
    process = _mapping_in(saved["trainer"], "run").get("process")
    before = _mapping_in(saved, part).get("seed")
    if process == PROCESS and before not in (None, seed):
        raise TrainError(
            f"{str(folder)!r} contains a finished run that another Trainer of this program trained with seed "
            f"{before}, and the seed is {seed} now: nothing would be trained, and the results would be those "
            f"of seed {before}. Use a checkpoint_dir for each run, such as {str(folder / f'seed-{seed}')!r}."
        )


def _mapping_in(saved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of what was saved; an empty one if it is missing, or damaged."""
    found = saved.get(name)
    return found if isinstance(found, Mapping) else {}


def _recorded(config: bytes | None) -> str:
    try:
        found = None if config is None else json.loads(config)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("run_id") or "") if isinstance(found, dict) else ""
