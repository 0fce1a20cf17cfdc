"""The bundles of a run, side by side: which are there, which is the newest whole one, which may go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flodl.core import CheckpointError, DamagedError, WriteError, log
from flodl.core.files import expand_user

from ..durable_files import discard, shared_lock
from .bundle import verify_bundle
from .manifest import Bundle, read_manifest, step_and_revision
from .retention import Policy, divided, keep


class Latest(NamedTuple):
    """The newest whole bundle, or None, and why newer ones were passed over."""

    bundle: Bundle | None
    skipped: list[str]


def list_bundles(root: str | os.PathLike[str]) -> list[Bundle]:
    """Give the bundles under a folder, by step; files are looked at, not read."""
    found: dict[int, Bundle] = {}
    for folder in _newest_first(expand_user(root)):
        try:
            bundle = read_manifest(folder)
        except DamagedError:
            continue
        found.setdefault(bundle.step, bundle)
    return sorted(found.values(), key=lambda bundle: bundle.step)


def latest_bundle(root: str | os.PathLike[str], *, verify: bool = True) -> Latest:
    """Find the newest bundle whose every file is as it was written; pass over the others and say so."""
    skipped: list[str] = []
    for folder in _newest_first(expand_user(root)):
        try:
            bundle = read_manifest(folder)
            if verify:
                verify_bundle(bundle)
        except DamagedError as error:
            log.warn("passing over a bundle: %s", error)
            skipped.append(error.what)
            continue
        return Latest(bundle, skipped)
    return Latest(None, skipped)


def prune_bundles(root: str | os.PathLike[str], policy: Policy, *, verify: bool = True) -> list[Bundle]:
    """Delete the bundles that a policy does not keep, and give them; the newest whole one always stays.

    With `verify`, the checksums of the newest are compared before anything older goes. A metric that no
    bundle has is refused, and nothing is deleted.
    """
    folder = expand_user(root)
    bundles = list_bundles(folder)
    while verify and bundles:
        try:
            verify_bundle(bundles[-1])
            break
        except DamagedError:
            bundles.pop()
    return _delete(folder, *keep(bundles, policy))


def prune_while_saving(root: Path, policy: Policy) -> list[Bundle]:
    """Prune between two saves of a run that goes on: its metrics may come later, and are checked there."""
    return _delete(root, *divided(list_bundles(root), policy))


def _delete(folder: Path, kept: list[Bundle], dropped: list[Bundle]) -> list[Bundle]:
    going = _folders_to_delete(folder, kept, dropped)
    if not going:
        return []
    try:
        with shared_lock(folder):
            for old in going:
                discard(old)
    except OSError as error:
        raise WriteError(
            f"cannot delete old bundles in {str(folder)!r}: {error.strerror or error}. They are still whole."
        ) from error
    return dropped


def _folders_to_delete(root: Path, kept: list[Bundle], dropped: list[Bundle]) -> list[Path]:
    """Give the folders of dropped steps, and earlier saves of kept steps that a crash left standing."""
    gone = {bundle.step for bundle in dropped}
    standing = {bundle.step: step_and_revision(bundle.path.name) for bundle in kept}
    going = []
    for folder in _newest_first(root):
        place = step_and_revision(folder.name)
        current = standing.get(place[0]) if place else None
        if place and (place[0] in gone or (current and place < current)):
            going.append(folder)
    return going


def _newest_first(root: Path) -> Iterator[Path]:
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(
            f"cannot look into {str(root)!r}: {error.strerror}. Give the folder that bundles are saved in."
        ) from error
    known = {name: place for name in names if (place := step_and_revision(name)) is not None}
    for name in sorted(known, key=known.__getitem__, reverse=True):
        yield root / name
