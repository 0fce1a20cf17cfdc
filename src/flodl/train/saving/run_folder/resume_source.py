"""Which bundle a run resumes from: its own newest one, or the one that the user names."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from flodl.checkpoint import Bundle, is_bundle, latest_bundle
from flodl.checkpoint.background.writer import wait_for_writers
from flodl.core import TrainError

from .damaged import all_damaged, open_intact
from .directory import BUNDLES, RunDirectory, absolute_path
from .missing_run import similar_folders, why_no_run


def find_bundle(directory: RunDirectory | None, source: str | Path, *, given: Any) -> Bundle | None:
    """Return the bundle to resume from: that of this run if there is one, else the one the user names.

    `given` is what the user wrote for `source`.
    """
    named = source if isinstance(source, Path) else None
    other = None if named is None else _bundle_in(named)
    if directory is None:
        if source == "must":
            raise TrainError(f"resume={given!r} needs a checkpoint_dir.")
        return other
    own, damage = directory.find()
    if own is None and damage and source != "never":
        raise all_damaged(directory.bundles, damage, is_own=True)
    folder = repr(str(directory.bundles))
    if own is None and source == "must":
        raise TrainError(
            f"resume={given!r} needs a saved run, but checkpoint_dir {str(directory.path)!r} "
            f"{why_no_run(directory.path)} resume='auto' starts a new run where there is none."
        )
    if own is not None and source == "never":
        raise TrainError(
            f"resume={given!r}, and {folder} contains a run up to step {own.step}. "
            "Choose a different checkpoint_dir, or resume='auto' to continue it."
        )
    if named is not None and other is not None and own is not None:
        _check_not_older(directory, named, other, own)
    return own or other


def parse_resume(resume: Any) -> str | Path:
    """Return "auto", "must", "never", or the path of an existing folder."""
    if isinstance(resume, bool):
        return "must" if resume else "never"
    if resume in ("auto", "must", "never"):
        return str(resume)
    if not resume or not isinstance(resume, str | PathLike):
        raise _invalid(resume)
    folder = absolute_path(resume, option="resume")
    if not folder.is_dir():
        raise _invalid(resume, similar_folders(folder))
    return folder


def _bundle_in(folder: Path) -> Bundle:
    """Return the bundle at a path, or the newest intact one in it."""
    if is_bundle(folder):
        return open_intact(folder)
    inside = folder / BUNDLES if (folder / BUNDLES).is_dir() else folder
    wait_for_writers(inside.absolute())
    found, damage = latest_bundle(inside)
    if found is None:
        raise all_damaged(inside, damage, is_own=False) if damage else _invalid(str(folder))
    return found


def _check_not_older(directory: RunDirectory, named: Path, other: Bundle, own: Bundle) -> None:
    """Raise if the user names a bundle of this run that is not its newest."""
    is_ours = other.path == named and named.parent.resolve() == directory.bundles.resolve()
    if is_ours and other.step < own.step:
        raise TrainError(
            f"{str(named)!r} is at step {other.step}, and the run in the same folder is at step "
            f"{own.step}: the next start could not tell which of the two to resume. Choose a different "
            "checkpoint_dir to resume from there, or move the newer bundles away."
        )


def _invalid(resume: Any, hint: str = "") -> TrainError:
    advice = hint or "Pass the checkpoint_dir of another run, or one of its bundles."
    return TrainError(
        f"resume={resume!r} is not 'auto', 'must', 'never' or a folder with an intact bundle. {advice}"
    )
