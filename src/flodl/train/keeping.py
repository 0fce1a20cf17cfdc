"""The run directory: configuration, journal, picture, and bundles with all that a run needs to go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from flodl.checkpoint import BackgroundWriter, Bundle, Policy, last, latest_bundle, read_bundle
from flodl.checkpoint.manifest import folder_name
from flodl.core import TrainError, WriteError
from flodl.core.environment import resolved_config
from flodl.core.files import write_atomic

from .hooks import metric_of

BUNDLES = "bundles"


class RunDirectory:
    """One folder for one run."""

    def __init__(
        self,
        path: Path,
        *,
        keep: Policy | None,
        when_disk_fails: Literal["go on", "stop"],
        on_error: Callable[[WriteError], object],
    ) -> None:
        if keep is not None and not isinstance(keep, Policy):
            raise TrainError(
                f"keep={keep!r}. Give a policy of flodl.checkpoint, such as last(3) | best('loss')."
            )
        self.path = path
        self._keep = keep or last(2)
        self._errors: Literal["report", "raise"] = "raise" if when_disk_fails == "stop" else "report"
        self._on_error = on_error
        self._writer: BackgroundWriter | None = None

    @property
    def bundles(self) -> Path:
        """Where the bundles are."""
        return self.path / BUNDLES

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write what the run was started with, and where each value came from."""
        text = json.dumps({"trainer": settings, "started_with": resolved_config()}, indent=2, default=str)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / "config.json", (text + "\n").encode())
        except OSError as error:
            raise TrainError(
                f"cannot write the run directory {str(self.path)!r}: {error.strerror or error}. "
                "Give a checkpoint_dir that can be written."
            ) from error

    def save(self, step: int, parts: Mapping[str, Any], metrics: Mapping[str, float], *, wait: bool) -> str:
        """Save a bundle beside the training, or now, and give its place in this folder."""
        if metrics:
            for name in self._keep.metrics:
                metric_of(metrics, name, f"keep={self._keep}")
        if self._writer is None:
            self._writer = BackgroundWriter(
                self.bundles, keep=self._keep, errors=self._errors, on_error=self._on_error
            )
        self._writer.save(step, parts, metrics=metrics)
        if wait:
            self._writer.wait()
        return f"{BUNDLES}/{folder_name(step, 1)}"

    def close(self) -> None:
        """Write what is on its way, and end the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def find(self) -> Bundle | None:
        """Give the newest whole bundle of this run."""
        return latest_bundle(self.bundles).bundle if self.bundles.is_dir() else None


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


def read_parts(bundle: Bundle) -> dict[str, Any]:
    """Read everything in a bundle whose checksums were compared already."""
    return read_bundle(bundle, verify=False)
