"""Going on with a run: which bundle to go on from, and doing it."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.checkpoint import Bundle, latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.data import Loader

from .differences import conflicting_modes, kept_modes, other_model, other_optimizer, other_settings
from .hooks import EarlyStopping
from .keeping import BUNDLES, RunDirectory
from .modes import modes_of
from .rates import optimizer_settings
from .state import load_parts

if TYPE_CHECKING:
    from .run import Run


def resume(run: Run, loader: Loader, how: str | PathLike[str] | bool) -> bool:
    """Go on from a bundle, and say whether there was one; a run that has begun already simply goes on.

    What was frozen or in evaluation comes back with the run's own folder, where its hooks may have changed
    it. Who starts from the folder of another run has set up the model for this one.
    """
    bundle = None if run.updates else found_bundle(run.directory, how)
    if bundle is None:
        return False
    # Its checksums were compared when it was found.
    parts = read_bundle(bundle, verify=False)
    own_folder = run.directory is not None and bundle.path.parent == run.directory.bundles
    run.optimizer_at_start = given = optimizer_settings(run.optimizer)
    run.modes_at_start = own_modes = modes_of(run.model)
    load_parts(run, parts, loader=loader, with_modes=own_folder)
    run.is_fresh = False
    run.count_updates()
    if own_folder:
        run.note_saved()
    saved = parts["trainer"]
    differences = [
        *other_settings(run, parts.get("config") or {}),
        *other_optimizer(
            given,
            run.optimizer.param_groups,
            at_start=saved.get("optimizer_at_start"),
            scheduled=run.schedule is not None,
        ),
        *other_model(run.model, saved.get("structural_hashes") or {}, parts["model"]),
        *(
            conflicting_modes(own_modes, saved["modes"], at_start=saved.get("modes_at_start"))
            if own_folder
            else kept_modes(own_modes, saved["modes"])
        ),
        *(
            f"the saved state of the hook {kind} finds no hook here"
            for kind in run.hooks.without_place(parts["hooks"])
        ),
    ]
    anew = not own_folder and any(isinstance(hook, EarlyStopping) for hook in run.hooks.all)
    notes = ["EarlyStopping waits anew"] if anew else []
    message = "; ".join([f"resumed from step {bundle.step}, epoch {run.epochs}", *notes, *differences])
    run.tell("alert", message=message, level="warning" if differences else "info")
    run.hooks.call("on_resume", epoch=run.epochs, own_folder=own_folder)
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
