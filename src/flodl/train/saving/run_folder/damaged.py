"""Damaged bundles: describe them, find weights that can be recovered, and move them aside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flodl.checkpoint import (
    Bundle,
    is_bundle,
    read_checkpoint,
    read_manifest,
    step_and_revision,
    verify_bundle,
)
from flodl.core import CheckpointError, DamagedError, TrainError

from .directory import RunDirectory

DAMAGED = "bundles.damaged"


def all_damaged(bundles: Path, damage: Sequence[str], *, is_own: bool) -> TrainError:
    """Return an error that describes every bundle of a folder and says what to do."""
    start_over = (
        " To start from scratch, choose a different checkpoint_dir, or resume='never', which moves the "
        f"damaged bundles to {DAMAGED!r} next to it."
    )
    return TrainError(
        f"{str(bundles)!r} contains {describe_damaged(damage)}. Nothing was changed there. "
        f"{_recoverable_weights(bundles)}{start_over if is_own else ''}"
    )


def describe_damaged(reasons: Sequence[str]) -> str:
    """Describe damaged bundles.

    >>> describe_damaged(["'step-1' is damaged: model.fdl has 3 bytes"])
    "a bundle that is not intact: 'step-1' is damaged: model.fdl has 3 bytes"
    """
    count = "a bundle that is not" if len(reasons) == 1 else f"{len(reasons)} bundles, none of them"
    return f"{count} intact: {'; '.join(reason.rstrip('.') for reason in reasons)}"


def open_intact(folder: Path) -> Bundle:
    """Return the bundle in a folder; raise DamagedError with the reason if it is not intact."""
    bundle = read_manifest(folder)
    verify_bundle(bundle)
    return bundle


def move_damaged(directory: RunDirectory | None, *, newer_than: Bundle | None) -> str:
    """Move damaged bundles out of the way of later saves, and return a warning, or "" if there are none."""
    moved = [] if directory is None else move_aside(directory.bundles, newer_than=newer_than)
    if not moved:
        return ""
    names = ", ".join(path.name for path in moved)
    return f"moved damaged bundles to {str(moved[0].parent)!r}: {names}"


def describe_ignored(directory: RunDirectory | None) -> str:
    """Return a warning about folders that are not named like bundles, or "" if there are none."""
    if directory is None or not directory.bundles.is_dir():
        return ""
    folders = (path for path in directory.bundles.iterdir() if path.is_dir())
    names = sorted(
        path.name for path in folders if path.name[0] != "." and step_and_revision(path.name) is None
    )
    if not names:
        return ""
    return (
        f"starting from scratch; these folders in {str(directory.bundles)!r} are ignored: "
        f"{', '.join(names)}. Bundles are named like step-00000037; resume= takes one with any name."
    )


def move_aside(bundles: Path, *, newer_than: Bundle | None) -> list[Path]:
    """Move the damaged bundles that are newer than an intact one, or all, and return their new paths.

    If they stayed, later saves would replace them, and a policy that keeps the last few bundles would keep
    these and delete intact ones.
    """
    newest = None if newer_than is None else step_and_revision(newer_than.path.name)
    aside = bundles.with_name(DAMAGED)
    moved = []
    for number, folder in _folders(bundles):
        if (newest is not None and number <= newest) or _is_intact(folder):
            continue
        try:
            aside.mkdir(exist_ok=True)
            moved.append(folder.rename(_unused(aside / folder.name)))
        except OSError as error:
            raise TrainError(
                f"cannot move the damaged bundle {str(folder)!r} to {str(aside)!r}: "
                f"{error.strerror or error}. Move it away, or choose a different checkpoint_dir."
            ) from error
    return moved


def _recoverable_weights(bundles: Path) -> str:
    for _, folder in reversed(_folders(bundles)):
        try:
            # Not the whole bundle: another of its files may be the damaged one.
            if not is_bundle(folder) or not read_checkpoint(folder / "model.fdl"):
                continue
        except CheckpointError:
            continue
        return (
            f"The weights of {folder.name} are intact: load them into a model with "
            f"load_checkpoint({str(folder / 'model.fdl')!r}, model.state_dict())."
        )
    return "None of them has an intact model.fdl."


def _is_intact(folder: Path) -> bool:
    try:
        open_intact(folder)
    except DamagedError:
        return False
    return True


def _folders(bundles: Path) -> list[tuple[tuple[int, int], Path]]:
    """Return the folders named like bundles, sorted by step and revision."""
    named = ((step_and_revision(folder.name), folder) for folder in bundles.glob("step-*"))
    return sorted((number, folder) for number, folder in named if number is not None)


def _unused(path: Path) -> Path:
    """Return this path, with a number appended if it exists."""
    number, unused = 1, path
    while unused.exists():
        number += 1
        unused = path.with_name(f"{path.name}-{number}")
    return unused
