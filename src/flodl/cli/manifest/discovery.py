"""Where manifests lie: the nearest one upwards, its overlays, and examples that stand in for one."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import click

from flodl.core.errors import ManifestError

NAMES = ("fdl.yaml", "fdl.yml", "fdl.json")
_EXAMPLES = tuple(f"{name}.{ending}" for name in NAMES for ending in ("example", "dist"))
_OVERLAY_ENDINGS = ("yaml", "yml", "json")
_OVERLAY = re.compile(r"fdl\.(.+)\.(?:yml|yaml|json)\Z")


def is_file(path: Path) -> bool:
    """Say whether a file is there; one in a folder that may not be looked into is not."""
    try:
        return path.is_file()
    except OSError:
        return False


def present(path: Path) -> bool:
    """Say whether a file is there; something of that name that cannot be read as one is an error.

    To pass over it would mean to take another manifest, further up, for the one that was meant.
    """
    if is_file(path):
        return True
    if os.path.lexists(path):
        raise ManifestError(f"{path} is there but cannot be read: {_why_not(path)}. Mend it or remove it.")
    return False


def _why_not(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"it is a link to {os.readlink(path)}, which is not there"
    except OSError as error:
        return error.strerror or str(error)
    return "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file"


def working_folder() -> Path:
    """Give the working directory, or say that it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        raise ManifestError("the working directory is gone. Go into one that exists: cd ~") from None


def manifest_in(folder: Path) -> Path | None:
    """Give the manifest of a folder, or the example that stands in for it."""
    return next((folder / name for name in (*NAMES, *_EXAMPLES) if present(folder / name)), None)


def manifests_in(folder: Path) -> list[Path]:
    """Give every manifest of a folder; the first one counts."""
    return [folder / name for name in NAMES if is_file(folder / name)]


def find_manifest(start: Path | None = None) -> Path | None:
    """Give the nearest manifest, in the folder or above it."""
    here = (start or working_folder()).absolute()
    for folder in (here, *here.parents):
        if found := manifest_in(folder):
            return found
    return None


def overlay_names(manifest: Path) -> list[str]:
    """Give the names of the overlays beside a manifest, sorted, with those that cannot be read."""
    found = (_OVERLAY.match(path.name) for path in _listed(manifest.parent))
    return sorted({match[1] for match in found if match})


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("fdl.*.*"))
    except OSError:
        return []


def overlay_file(manifest: Path, name: str) -> Path | None:
    """Give the file of an overlay, or nothing."""
    return next(iter(overlay_files(manifest, name)), None)


def overlay_files(manifest: Path, name: str) -> list[Path]:
    """Give every file of an overlay; the first one counts, as with manifests."""
    files = (manifest.parent / f"fdl.{name}.{ending}" for ending in _OVERLAY_ENDINGS)
    return [file for file in files if present(file)]


def is_example(manifest: Path) -> bool:
    """Say whether this is an example that stands in for a manifest."""
    return manifest.name in _EXAMPLES


def offer_to_copy_example(manifest: Path) -> Path:
    """Offer to copy an example to the real name, on a terminal; without one, or refused, use it as it is."""
    if not is_example(manifest) or sys.stdin is None or not sys.stdin.isatty():
        return manifest
    real = manifest.with_suffix("")
    click.echo(
        f"There is no {real.name} in {real.parent}. Copy {manifest.name} to it? [Y/n] ", nl=False, err=True
    )
    answer = sys.stdin.readline()
    if not answer:  # the end of the input is no answer
        click.echo(err=True)
    if answer.strip().lower() not in ("", "y", "yes") or not answer:
        return manifest
    import shutil

    try:
        shutil.copy(manifest, real)
    except OSError as error:
        click.echo(f"It cannot be copied: {error.strerror}. Using {manifest.name} itself.", err=True)
        return manifest
    return real


def require_manifest(start: Path | None = None) -> Path:
    """Give the nearest manifest, or say how to make one."""
    found = find_manifest(start)
    if found is None:
        raise ManifestError(
            f"no fdl.yml found in {(start or working_folder()).absolute()} or above it. "
            "Go into a project, or write an fdl.yml with `commands:`."
        )
    return found
