"""Damaged bundles: what is wrong with them, what can still be had of them, and a place out of the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flodl.checkpoint import Bundle, read_bundle, read_manifest, step_and_revision, verify_bundle
from flodl.core import CheckpointError, DamagedError, TrainError

if TYPE_CHECKING:
    from ..run import Run

DAMAGED = "bundles.damaged"


def none_whole(bundles: Path, wrong: Sequence[str], *, is_own: bool) -> TrainError:
    """Say what is wrong with each bundle of a folder, the run's own or another's, and what to do."""
    anew = (
        " To begin anew, choose another checkpoint_dir, or resume='never', which moves what is damaged to "
        f"{DAMAGED!r} beside it."
    )
    return TrainError(
        f"{str(bundles)!r} holds {what_is_wrong(wrong)}. Nothing there was touched. "
        f"{_whole_weights(bundles)}{anew if is_own else ''}"
    )


def what_is_wrong(reasons: Sequence[str]) -> str:
    """Say that none of the bundles is whole, and why.

    >>> what_is_wrong(["'step-1' is damaged: model.fdl has 3 bytes"])
    "a bundle that is not whole: 'step-1' is damaged: model.fdl has 3 bytes"
    """
    count = "a bundle that is not" if len(reasons) == 1 else f"{len(reasons)} bundles, none of them"
    return f"{count} whole: {'; '.join(reason.rstrip('.') for reason in reasons)}"


def whole_bundle(folder: Path) -> Bundle:
    """Give the bundle that a folder is; raises DamagedError with the reason where it is not whole."""
    bundle = read_manifest(folder)
    verify_bundle(bundle)
    return bundle


def set_aside_and_say(run: Run, *, after: Bundle | None) -> None:
    """Move damaged bundles out of the way of the saves to come, and say so."""
    moved = [] if run.directory is None else set_aside(run.directory.bundles, after=after)
    if moved:
        names = ", ".join(path.name for path in moved)
        message = f"damaged, and moved to {str(moved[0].parent)!r}: {names}"
        run.tell("alert", message=message, level="warning")


def say_what_is_not_read(run: Run) -> None:
    """Name the folders among the bundles that are not named as bundles are, where a run begins anew."""
    if run.directory is None or not run.directory.bundles.is_dir():
        return
    folders = (path for path in run.directory.bundles.iterdir() if path.is_dir())
    names = sorted(
        path.name for path in folders if path.name[0] != "." and step_and_revision(path.name) is None
    )
    if names:
        message = (
            f"begins anew; these folders in {str(run.directory.bundles)!r} are not read: {', '.join(names)}. "
            "Bundles are called step-00000037; resume= takes one of any name."
        )
        run.tell("alert", message=message, level="warning")


def set_aside(bundles: Path, *, after: Bundle | None) -> list[Path]:
    """Move the damaged bundles that are newer than a whole one, or all, and give where they are now.

    Where they stay, the saves to come would replace them, and a policy that keeps the last few would keep
    these and delete whole ones.
    """
    newest = None if after is None else step_and_revision(after.path.name)
    aside = bundles.with_name(DAMAGED)
    moved = []
    for place, folder in _folders(bundles):
        if (newest is not None and place <= newest) or _is_whole(folder):
            continue
        try:
            aside.mkdir(exist_ok=True)
            moved.append(folder.rename(_free(aside / folder.name)))
        except OSError as error:
            raise TrainError(
                f"cannot move the damaged bundle {str(folder)!r} to {str(aside)!r}: "
                f"{error.strerror or error}. Move it away, or choose another checkpoint_dir."
            ) from error
    return moved


def _whole_weights(bundles: Path) -> str:
    for _, folder in reversed(_folders(bundles)):
        try:
            read_bundle(folder, parts=["model"])
        except CheckpointError:
            continue
        return (
            f"The weights of {folder.name} are whole: load them into a model with "
            f"load_checkpoint({str(folder / 'model.fdl')!r}, model.state_dict())."
        )
    return "No model.fdl among them is whole."


def _is_whole(folder: Path) -> bool:
    try:
        whole_bundle(folder)
    except DamagedError:
        return False
    return True


def _folders(bundles: Path) -> list[tuple[tuple[int, int], Path]]:
    """Give the folders that are named as bundles are, by step and revision."""
    named = ((step_and_revision(folder.name), folder) for folder in bundles.glob("step-*"))
    return sorted((place, folder) for place, folder in named if place is not None)


def _free(path: Path) -> Path:
    """Give a path that is not taken: this one, or one with a number."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
