"""Going on with a run: which bundle to go on from, and doing it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.checkpoint import Bundle, is_bundle, latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.data import Loader

from .callbacks.standard import EarlyStopping
from .evaluation.modes import modes_of
from .learning_rate import optimizer_settings
from .saving.bundle import load_parts
from .saving.damaged import none_whole, say_what_is_not_read, set_aside_and_say, whole_bundle
from .saving.differences import differences
from .saving.directory import BUNDLES, RunDirectory, settled_path

if TYPE_CHECKING:
    from .run import Run


def resume(run: Run, loader: Loader, how: str | PathLike[str] | bool) -> bool:
    """Go on from a bundle, and say whether there was one; a run that has begun already simply goes on.

    What was frozen or in evaluation comes back with the run's own folder, where its hooks may have changed
    it. Who starts from the folder of another run has set up the model for this one.
    """
    wish = wish_of(how)
    if run.updates:
        return False
    bundle = found_bundle(run.directory, wish)
    if bundle is None:
        set_aside_and_say(run, after=None)
        say_what_is_not_read(run)
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
        set_aside_and_say(run, after=bundle)
    told = differences(run, parts, groups=given, modes=own_modes, own_folder=own_folder)
    anew = not own_folder and any(isinstance(hook, EarlyStopping) for hook in run.hooks.all)
    notes = ["EarlyStopping waits anew"] if anew else []
    if own_folder and isinstance(wish, Path) and not bundle.path.is_relative_to(wish):
        notes.append(f"its own folder comes before {str(wish)!r}")
    message = "; ".join([f"resumed from step {bundle.step}, epoch {run.epochs}", *notes, *told])
    run.tell("alert", message=message, level="warning" if told else "info")
    run.hooks.call("on_resume", epoch=run.epochs, own_folder=own_folder)
    return True


def found_bundle(directory: RunDirectory | None, wish: str | Path) -> Bundle | None:
    """Give the bundle to go on from: that of this run where there is one, else what the user names."""
    named = wish if isinstance(wish, Path) else None
    other = None if named is None else _bundle_at(named)
    if directory is None:
        if wish == "must":
            raise TrainError(f"resume={wish!r} needs a checkpoint_dir to look into.")
        return other
    own, wrong = directory.find()
    if own is None and wrong and wish != "never":
        raise none_whole(directory.bundles, wrong, is_own=True)
    place = repr(str(directory.bundles))
    if own is None and wish == "must":
        raise TrainError(f"resume={wish!r}, and {place} holds no whole bundle to go on from.")
    if own is not None and wish == "never":
        raise TrainError(
            f"resume={wish!r}, and {place} holds a run up to step {own.step}. "
            "Choose another checkpoint_dir, or resume='auto' to go on."
        )
    if named is not None and other is not None and own is not None:
        _refuse_to_go_back(directory, named, other, own)
    return own or other


def wish_of(resume: Any) -> str | Path:
    """Give what the user wants: "auto", "must", "never", or a folder that is there."""
    if isinstance(resume, bool):
        return "must" if resume else "never"
    if resume in ("auto", "must", "never"):
        return str(resume)
    if not resume or not isinstance(resume, str | PathLike):
        raise _no_such(resume)
    folder = settled_path(resume, named="resume")
    if not folder.is_dir():
        raise _no_such(resume)
    return folder


def _bundle_at(folder: Path) -> Bundle:
    """Give the bundle that a folder is, or the newest whole one of those that it holds."""
    if is_bundle(folder):
        return whole_bundle(folder)
    inside = folder / BUNDLES if (folder / BUNDLES).is_dir() else folder
    found, wrong = latest_bundle(inside)
    if found is None:
        raise none_whole(inside, wrong, is_own=False) if wrong else _no_such(str(folder))
    return found


def _refuse_to_go_back(directory: RunDirectory, named: Path, other: Bundle, own: Bundle) -> None:
    """Refuse to go on from an earlier bundle of this run beside its newer ones."""
    is_ours = other.path == named and named.parent.resolve() == directory.bundles.resolve()
    if is_ours and other.step < own.step:
        raise TrainError(
            f"{str(named)!r} is at step {other.step}, and the run in the same folder goes up to step "
            f"{own.step}: the next start could not tell with which of the two to go on. Choose another "
            "checkpoint_dir to go on from there, or move the newer bundles away."
        )


def _no_such(resume: Any) -> TrainError:
    return TrainError(
        f"resume={resume!r} is neither 'auto', 'must' or 'never' nor a folder with a whole bundle. "
        "Give the checkpoint_dir of another run, or one of its bundles."
    )
