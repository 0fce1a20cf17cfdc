"""Going on with a run: which bundle to go on from, and doing it."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.checkpoint import Bundle, latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.data import Loader

from .keeping import BUNDLES, RunDirectory
from .state import load_parts

if TYPE_CHECKING:
    from .run import Run


def resume(run: Run, loader: Loader, how: str | PathLike[str] | bool) -> bool:
    """Go on from a bundle, and say whether there was one; a run that has begun already simply goes on."""
    bundle = None if run.updates else found_bundle(run.directory, how)
    if bundle is None:
        return False
    # Its checksums were compared when it was found.
    load_parts(run, read_bundle(bundle, verify=False), loader=loader)
    run.count_updates()
    if run.directory is not None and bundle.path.parent == run.directory.bundles:
        run.note_saved()
    run.tell("alert", message=f"resumed from step {bundle.step}, epoch {run.epochs}", level="info")
    run.hooks.call("on_resume", epoch=run.epochs)
    return True


def found_bundle(directory: RunDirectory | None, resume: str | PathLike[str] | bool) -> Bundle | None:
    """Give the bundle to go on from: that of this run where there is one, else what the user names."""
    wish = _wish(resume)
    if directory is None and wish == "must":
        raise TrainError(f"resume={resume!r} needs a checkpoint_dir to look into.")
    own = None if directory is None else directory.find()
    place = "" if directory is None else repr(str(directory.bundles))
    if own is None and wish == "must":
        raise TrainError(f"resume={resume!r}, and {place} holds no whole bundle to go on from.")
    if own is not None and wish == "never":
        raise TrainError(
            f"resume={resume!r}, and {place} holds a run up to step {own.step}. "
            "Choose another checkpoint_dir, or resume='auto' to go on."
        )
    if own is not None or wish in ("auto", "never"):
        return own
    other = _bundle_in(wish)
    if other is None:
        raise _no_such(wish)
    return other


def _wish(resume: Any) -> str:
    """Give what the user wants, checked before anybody looks into this run's own folder."""
    if isinstance(resume, bool):
        return "must" if resume else "never"
    try:
        wish = str(os.fspath(resume))
    except TypeError:
        raise _no_such(resume) from None
    if wish not in ("auto", "must", "never") and _bundle_in(wish) is None:
        raise _no_such(wish)
    return wish


def _bundle_in(place: str) -> Bundle | None:
    folder = Path(place)
    return (
        latest_bundle(folder / BUNDLES if (folder / BUNDLES).is_dir() else folder).bundle if place else None
    )


def _no_such(resume: Any) -> TrainError:
    return TrainError(
        f"resume={resume!r} is neither 'auto', 'must' or 'never' nor a folder with a whole bundle. "
        "Give the checkpoint_dir of another run."
    )
