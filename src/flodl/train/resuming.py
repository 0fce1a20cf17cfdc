"""Going on with a run: which bundle to go on from, and doing it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flodl.checkpoint import Bundle, latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.data import Loader

from .keeping import BUNDLES, RunDirectory
from .setup import settings_of
from .state import load_parts

if TYPE_CHECKING:
    from .run import Run


def resume(run: Run, loader: Loader, how: str | PathLike[str] | bool) -> bool:
    """Go on from a bundle, and say whether there was one; a run that has begun already simply goes on."""
    bundle = None if run.updates else found_bundle(run.directory, how)
    if bundle is None:
        return False
    # Its checksums were compared when it was found.
    parts = read_bundle(bundle, verify=False)
    given = [dict(group) for group in run.optimizer.param_groups]
    load_parts(run, parts, loader=loader)
    differences = [*_other_settings(run, parts), *_other_numbers(run, given)]
    run.count_updates()
    if run.directory is not None and bundle.path.parent == run.directory.bundles:
        run.note_saved()
    message = "; ".join([f"resumed from step {bundle.step}, epoch {run.epochs}", *differences])
    run.tell("alert", message=message, level="info")
    run.hooks.call("on_resume", epoch=run.epochs)
    return True


def _other_settings(run: Run, parts: Mapping[str, Any]) -> Iterator[str]:
    """Name the settings that are not those of the saved run; this program's hold from here on."""
    saved = parts.get("config") or {}
    for name, value in settings_of(run).items():
        if name in saved and saved[name] != value:
            yield f"{name} is {value!r} now, it was {saved[name]!r}"


def _other_numbers(run: Run, given: list[dict[str, Any]]) -> list[str]:
    """Name the numbers of the optimizer that this program gave in vain: those of the saved run hold."""
    moved = {"lr", "initial_lr"} if run.schedule is not None else {"initial_lr"}
    told = {
        f"the optimizer goes on with its {name} of {float(held[name]):g}, not {float(own[name]):g}"
        for own, held in zip(given, run.optimizer.param_groups)
        for name in own.keys() - moved
        if _is_number(own[name]) and _is_number(held[name])
        # A rate that was on a device came back with the digits of a float32.
        if not math.isclose(own[name], held[name], rel_tol=1e-6)
    }
    return sorted(told)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Tensor) and not isinstance(value, bool)


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
