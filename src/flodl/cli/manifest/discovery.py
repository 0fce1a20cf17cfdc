"""Find manifests on disk: the nearest one, its overlays, and example manifests."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import click

from flodl.core.errors import ManifestError

NAMES = ("fdl.yaml", "fdl.yml", "fdl.json")
_EXAMPLES = tuple(f"{name}.{suffix}" for name in NAMES for suffix in ("example", "dist"))
_OVERLAY_SUFFIXES = ("yaml", "yml", "json")
_OVERLAY = re.compile(r"fdl\.(.+)\.(?:yml|yaml|json)\Z")


def is_file(path: Path) -> bool:
    """Return whether a file exists, or False if its folder cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Return whether a file exists. Raise if there is something with that name that is not a readable file.

    If it were skipped, a different manifest in a parent folder would be used without notice.
    """
    if is_file(path):
        return True
    if os.path.lexists(path):
        raise ManifestError(f"{path} exists but cannot be read: {_reason(path)}. Fix or remove it.")
    return False


def _reason(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"it is a link to {os.readlink(path)}, which does not exist"
    except OSError as error:
        return error.strerror or str(error)
    return "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file"


def working_folder() -> Path:
    """Return the working directory, or raise if it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        raise ManifestError("the working directory no longer exists. Change to one that does: cd ~") from None


def manifest_in(folder: Path) -> Path | None:
    """Return the manifest of a folder, or the example that is used in its place."""
    return next((folder / name for name in (*NAMES, *_EXAMPLES) if exists(folder / name)), None)


def manifests_in(folder: Path) -> list[Path]:
    """Return every manifest of a folder. The first one is used."""
    return [folder / name for name in NAMES if is_file(folder / name)]


def find_manifest(start: Path | None = None) -> Path | None:
    """Return the nearest manifest, in the folder or one of its parents."""
    here = (start or working_folder()).absolute()
    for folder in (here, *here.parents):
        if found := manifest_in(folder):
            return found
    return None


def overlay_names(manifest: Path) -> list[str]:
    """Return the sorted names of the overlays next to a manifest, unreadable ones included."""
    matches = (_OVERLAY.match(path.name) for path in _overlay_candidates(manifest.parent))
    return sorted({match[1] for match in matches if match})


def _overlay_candidates(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("fdl.*.*"))
    except OSError:
        return []


def overlay_file(manifest: Path, name: str) -> Path | None:
    """Return the file of an overlay, or None."""
    return next(iter(overlay_files(manifest, name)), None)


def overlay_files(manifest: Path, name: str) -> list[Path]:
    """Return every file of an overlay. The first one is used, as with manifests."""
    files = (manifest.parent / f"fdl.{name}.{suffix}" for suffix in _OVERLAY_SUFFIXES)
    return [file for file in files if exists(file)]


def is_example(manifest: Path) -> bool:
    """Return whether this is an example manifest."""
    return manifest.name in _EXAMPLES


def offer_to_copy_example(manifest: Path) -> Path:
    """Offer to copy an example manifest to the real name.

    Return the example itself if the user declines or if there is no terminal.
    """
    if not is_example(manifest) or sys.stdin is None or not sys.stdin.isatty():
        return manifest
    real = manifest.with_suffix("")
    click.echo(
        f"There is no {real.name} in {real.parent}. Create it from {manifest.name}? [Y/n] ",
        nl=False,
        err=True,
    )
    answer = sys.stdin.readline()
    if not answer:  # end of input
        click.echo(err=True)
    if answer.strip().lower() not in ("", "y", "yes") or not answer:
        return manifest
    import shutil

    try:
        shutil.copy(manifest, real)
    except OSError as error:
        click.echo(f"Cannot copy it: {error.strerror}. Using {manifest.name} itself.", err=True)
        return manifest
    return real


def require_manifest(start: Path | None = None) -> Path:
    """Return the nearest manifest, or raise with advice on how to create one."""
    found = find_manifest(start)
    if found is None:
        raise ManifestError(
            f"no fdl.yml found in {(start or working_folder()).absolute()} or its parents. "
            "Change to a project folder, or create an fdl.yml with `commands:`."
        )
    return found
