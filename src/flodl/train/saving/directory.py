"""The run directory: configuration, journal, picture, and bundles with all that a run needs to go on."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from flodl.checkpoint import BackgroundWriter, Latest, Policy, Saved, last, latest_bundle, list_bundles
from flodl.core import TrainError, WriteError
from flodl.core.environment import resolved_config
from flodl.core.files import expand_user, write_atomic

from ..callbacks.patience import metric_of
from .disk_space import lack_of_room, num_bytes_of
from .lock import Hold

BUNDLES = "bundles"


def settled_path(given: str | os.PathLike[str], *, named: str) -> Path:
    """Give a path that no later change of the working directory moves, "~" being the user's home."""
    try:
        return expand_user(given).absolute()
    except TypeError:
        raise TrainError(f"{named}={given!r}. Give the path of a folder.") from None


class RunDirectory:
    """One folder for one run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: Policy | None,
        when_disk_fails: Literal["go on", "stop"],
        tell: Callable[..., None],
        on_error: Callable[[WriteError], object],
    ) -> None:
        if keep is not None and not isinstance(keep, Policy):
            raise TrainError(
                f"keep={keep!r}. Give a policy of flodl.checkpoint, such as last(3) | best('loss')."
            )
        self.path = settled_path(path, named="checkpoint_dir")
        self.keep = keep or last(2)
        self._errors: Literal["report", "raise"] = "raise" if when_disk_fails == "stop" else "report"
        self._tell, self._on_error = tell, on_error
        self._writer: BackgroundWriter | None = None
        self._hold: Hold | None = None
        self._news: deque[Saved] = deque()
        self._told_of_room = False
        self._unwritten = ""

    @property
    def bundles(self) -> Path:
        """Where the bundles are."""
        return self.path / BUNDLES

    def take(self, settings: Mapping[str, Any]) -> None:
        """Keep the folder for this run alone, and write down what it was started with and from where.

        A run that has bundles to go on from needs no more than these: a full disk does not keep it from it.
        """
        text = json.dumps({"trainer": settings, "started_with": resolved_config()}, indent=2, default=str)
        self._unwritten = ""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold = Hold(self.path)
            write_atomic(self.path / "config.json", (text + "\n").encode())
        except OSError as error:
            why = f"cannot write the run directory {str(self.path)!r}: {error.strerror or error}."
            if self._errors == "raise" or not list_bundles(self.bundles):
                raise TrainError(f"{why} Give a checkpoint_dir that can be written.") from error
            self._unwritten = f"{why} Make room: training goes on from the bundles that are there."

    @property
    def for_journal(self) -> Path | None:
        """Where the journal of the run goes; nowhere if the folder could not be written as it was taken."""
        return None if self._unwritten else self.path

    def release(self) -> None:
        """Let other runs have the folder."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def save(
        self, step: int, parts: Mapping[str, Any], metrics: Mapping[str, float], *, reason: str, wait: bool
    ) -> bool:
        """Save a bundle beside the training, or now; say whether it was waited for and is on the disk."""
        if metrics:
            for name in self.keep.metrics:
                metric_of(metrics, name, f"keep={self.keep}")
        if self._writer is None:
            self._writer = BackgroundWriter(
                self.bundles,
                keep=self.keep,
                errors=self._errors,
                on_error=self._on_error,
                on_saved=self._saved,
            )
        self._warn_of(lack_of_room(self.path, num_bytes_of(parts.values()), at_once=1))
        self.wait()
        before = self._writer.last_saved
        self._writer.save(step, parts, metrics=metrics, reason=reason)
        if wait:
            self.wait()
        return wait and self._writer.last_saved != before

    def check_room(self, bundle_bytes: int, *, num_saves: int | None) -> None:
        """Warn where the saves to come, of about that size, find no room; None is any number of them."""
        self._told_of_room = bool(self._unwritten)
        if self._unwritten:
            self._tell("alert", message=self._unwritten, level="warning")
        there = list_bundles(self.bundles) if self.bundles.is_dir() else []
        at_once = 1
        if self.keep.most is not None:
            # A save is there in whole before the one that it replaces goes.
            at_once = self.keep.most + 1
            at_once = at_once if num_saves is None else min(at_once, num_saves + len(there))
        size = there[-1].num_bytes if there else bundle_bytes
        bytes_there = sum(bundle.num_bytes for bundle in there)
        self._warn_of(lack_of_room(self.path, size, at_once=at_once, bytes_there=bytes_there))

    @property
    def has_news(self) -> bool:
        """Whether a save has reached the disk since `news` was last asked."""
        return bool(self._news)

    def news(self) -> Iterator[Saved]:
        """Give the saves that have reached the disk since the last call, in order."""
        while self._news:
            yield self._news.popleft()

    def wait(self) -> None:
        """Return when every save is on the disk, or has failed."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Write what is on its way, and end the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def find(self) -> Latest:
        """Give the newest whole bundle of this run, and what is wrong with newer ones."""
        return latest_bundle(self.bundles) if self.bundles.is_dir() else Latest(None, [])

    def _saved(self, saved: Saved) -> None:
        """Tell of a save when it is on the disk; this runs in the writer's thread."""
        path = f"{BUNDLES}/{saved.path.name}"
        self._tell("save", path=path, reason=saved.reason, duration_s=saved.duration_s)
        self._news.append(saved)

    def _warn_of(self, lack: str) -> None:
        """Tell of a lack of room once in a run; whether a save succeeds is another matter."""
        if lack and not self._told_of_room:
            self._told_of_room = True
            self._tell("alert", message=lack, level="warning")
