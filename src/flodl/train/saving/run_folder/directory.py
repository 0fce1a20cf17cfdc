"""The run directory: configuration, journal, picture, and the bundles that a run resumes from."""

from __future__ import annotations

import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from flodl.checkpoint import (
    BackgroundWriter,
    Latest,
    Policy,
    Saved,
    is_bundle,
    last,
    latest_bundle,
    list_bundles,
)
from flodl.checkpoint.background.writer import wait_for_writers
from flodl.core import TrainError, WriteError
from flodl.core.environment import resolved_config
from flodl.core.files import expand_user, write_atomic
from flodl.core.output_files import shown

from ...callbacks.patience import is_evaluated, metric_of
from ...settings import DiskPolicy
from .disk_space import num_bytes_of, space_warning
from .earlier_config import damage_of, move_aside, moved_text
from .identity import RunIdentity
from .lock import DirectoryLock
from .starts import starts_with

BUNDLES = "bundles"


def absolute_path(path: str | os.PathLike[str], *, option: str) -> Path:
    """Return an absolute path, with "~" expanded; a later change of directory does not affect it."""
    try:
        if not os.fspath(path):
            raise TrainError(
                f"{option}={path!r} is empty. Pass the path of a folder; '.' is the working directory."
            )
        if "\0" in os.fspath(path):
            raise TrainError(f"{option}={path!r} contains a NUL character. Pass the path of a folder.")
        found = expand_user(path).absolute()
        _check_length(found, option)
        return found
    except TypeError:
        raise TrainError(f"{option}={path!r}. Pass the path of a folder.") from None


def _check_length(path: Path, option: str) -> None:
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise TrainError(
                f"{option}={shown(path)}: the name is too long. Choose a shorter one: most file systems "
                "allow 255 bytes for a name."
            ) from None


def _refuse_saves(path: Path) -> None:
    """Raise if a folder is a bundle of a run, or contains its bundles: a run there would destroy them."""
    if is_bundle(path):
        saves, what = path.parent, "is a bundle, a save of a run"
    elif path.name == BUNDLES and any(map(is_bundle, path.glob("step-*"))):
        saves, what = path, "contains the bundles of a run"
    else:
        return
    own = f"To continue the run, pass its folder: checkpoint_dir={str(saves.parent)!r}. "
    raise TrainError(
        f"checkpoint_dir={str(path)!r} {what}, which a new run would damage. "
        f"{own if saves.name == BUNDLES else ''}To start another run from it, choose a new checkpoint_dir "
        f"and call fit(…, resume={str(path)!r}). Nothing was changed."
    )


class RunDirectory:
    """The folder of one run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: Policy | None,
        when_disk_fails: DiskPolicy,
        report: Callable[..., None],
        on_error: Callable[[WriteError], object],
        before_save: Callable[[], object],
    ) -> None:
        if keep is not None and not isinstance(keep, Policy):
            raise TrainError(f"keep={keep!r}. Use a policy of flodl.checkpoint, such as {_policy_for(keep)}.")
        self.path = absolute_path(path, option="checkpoint_dir")
        for folder in (self.path, *self.path.parents):
            if folder.is_file():
                raise TrainError(f"checkpoint_dir={str(path)!r}: {str(folder)!r} is a file. Pass a folder.")
        _refuse_saves(self.path)
        self.keep = last(2) if keep is None else keep
        self._errors: Literal["report", "raise"] = "raise" if when_disk_fails == "stop" else "report"
        self._report, self._on_error, self._before_save = report, on_error, before_save
        self._writer: BackgroundWriter | None = None
        self._lock: DirectoryLock | None = None
        # Saves that have reached the disk, and that `take_finished` has not returned yet.
        self.finished: deque[Saved] = deque()
        self._warned_of_space = False
        # The reason why the folder could not be written, if it could not.
        self._write_error = ""
        # The damaged config.json of an earlier start under its new name, and what is said about it.
        self._kept: Path | None = None
        self._moved = ""
        self.identity = RunIdentity(self.path)

    @property
    def bundles(self) -> Path:
        """The folder of the bundles."""
        return self.path / BUNDLES

    @property
    def has_bundles(self) -> bool:
        """Whether a run was saved in the folder."""
        wait_for_writers(self.bundles)
        return self.bundles.is_dir() and bool(list_bundles(self.bundles))

    def lock(self) -> None:
        """Lock the folder for this run, if it exists."""
        if self._lock is None and self.path.is_dir():
            self._lock = DirectoryLock(self.path)

    def refuse_earlier_run(self) -> None:
        """Raise if the folder contains a run that this one, which starts from scratch, would mix with."""
        own, _ = self.find()
        if own is not None and own.step:
            raise TrainError(
                f"{str(self.bundles)!r} contains a run up to step {own.step}, but this run starts from "
                "scratch. Call trainer.resume(data) before the first epoch to continue it, or choose a "
                "different checkpoint_dir."
            )

    @contextmanager
    def begin(self, record: Mapping[str, Any], *, step: int = 0) -> Iterator[None]:
        """Create and lock the folder, and write config.json; undo all of it if the block raises.

        `step` is the number of updates that were done before this start.
        """
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        previous = self.read_config()
        try:
            self._write_config(record, previous, step)
            yield
        except BaseException:
            with suppress(OSError):
                self._restore_config(previous)
            self.release()
            with suppress(OSError):
                for folder in missing:
                    folder.rmdir()
            raise

    def _write_config(self, record: Mapping[str, Any], previous: bytes | None, step: int) -> None:
        """Write the settings of this start, and those of the earlier ones.

        A run that has bundles needs only those if the disk is full.
        """
        content: dict[str, Any] = {"run_id": self.identity.of(previous)}
        content |= {"trainer": record, "started_with": resolved_config()}
        damage = self._damage_of(previous)
        content["starts"] = starts_with(content, None if damage else previous, step)
        text = json.dumps(content, indent=2, default=str)
        self._write_error, self._kept, self._moved = "", None, ""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            if damage:
                self._kept = move_aside(self._config)
                self._moved = moved_text(damage, self._config, self._kept)
            write_atomic(self._config, (text + "\n").encode())
        except OSError as error:
            with suppress(OSError):
                self._restore_config(previous)
            why, remedy = self._write_failure(error)
            if self._errors == "raise" or not self.has_bundles:
                choose = (
                    "or choose another checkpoint_dir"
                    if remedy
                    else "Choose a checkpoint_dir that can be written"
                )
                raise TrainError(f"{why} {remedy}{', ' * bool(remedy)}{choose}.") from error
            self._write_error = (
                f"{why} {remedy or 'Make it writable'}: training continues from the existing bundles."
            )

    def _write_failure(self, error: OSError) -> tuple[str, str]:
        """Return what went wrong when config.json was written, and what helps, if that is known."""
        if self._config.is_dir():
            return f"cannot write {str(self._config)!r}: it is a folder.", "Move it away"
        why = f"cannot write the run directory {str(self.path)!r}: {error.strerror or error}."
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return why, "Free some space" if is_full else ""

    def _damage_of(self, previous: bytes | None) -> str:
        """Say what is wrong with the config.json of the last start; "" if nothing is, or if there is none."""
        if previous is not None:
            return damage_of(previous)
        return "it cannot be read" if self._config.is_file() else ""

    def _restore_config(self, previous: bytes | None) -> None:
        """Undo what this start did to config.json."""
        kept, self._kept, self._moved = self._kept, None, ""
        if kept is not None:
            kept.replace(self._config)
        elif previous is None and not self._config.is_dir():
            self._config.unlink(missing_ok=True)
        elif previous is not None and self._config.read_bytes() != previous:
            write_atomic(self._config, previous)

    def read_config(self) -> bytes | None:
        """Return config.json as the last start wrote it; None if it cannot be read."""
        with suppress(OSError):
            return self._config.read_bytes()
        return None

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def journal_folder(self) -> Path | None:
        """The folder for the journal; None if it could not be written when the run began."""
        return None if self._write_error else self.path

    def release(self) -> None:
        """Let other runs use the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def save(
        self,
        step: int,
        parts: Mapping[str, Any],
        metrics: Mapping[str, float],
        *,
        metadata: Mapping[str, str] | None = None,
        earlier: Collection[str] = (),
        reason: str,
        wait: bool,
    ) -> bool:
        """Save a bundle in the background, or wait; return whether it was waited for and is on disk.

        A metric that `keep` needs may be missing if it is one of `earlier` epochs or of later ones, or if the
        epoch was not evaluated: it was not measured.
        """
        if metrics:
            if not any(map(is_evaluated, metrics)):
                earlier = {*earlier, *filter(is_evaluated, self.keep.metrics)}
            metrics = {**{name: math.nan for name in self.keep.metrics if name in earlier}, **metrics}
            for name in self.keep.metrics:
                metric_of(metrics, name, f"keep={self.keep}")
        if self._writer is None:
            self._writer = BackgroundWriter(
                self.bundles,
                keep=self.keep,
                errors=self._errors,
                on_error=self._on_error,
                on_saved=self._on_saved,
                # A bundle is valid only once the journal has the epochs that it contains.
                before_write=self._before_save,
            )
        self._warn_once(space_warning(self.path, num_bytes_of(parts.values()), at_once=1))
        self.wait()
        before = self._writer.last_saved
        self._writer.save(step, parts, metrics=metrics, metadata=metadata, reason=reason)
        if wait:
            self.wait()
        return wait and self._writer.last_saved != before

    def check_space(self, bundle_bytes: int, *, num_saves: int | None) -> None:
        """Warn if the disk has no room for the planned saves; `num_saves` is None if it is unknown."""
        if self._moved:
            self._report("alert", message=self._moved, level="warning")
        self._warned_of_space = bool(self._write_error)
        if self._write_error:
            self._report("alert", message=self._write_error, level="warning")
        existing = list_bundles(self.bundles) if self.bundles.is_dir() else []
        at_once = 1
        if self.keep.most is not None:
            # A save is complete before the one that it replaces is deleted.
            at_once = self.keep.most + 1
            at_once = at_once if num_saves is None else min(at_once, num_saves + len(existing))
        size = existing[-1].num_bytes if existing else bundle_bytes
        existing_bytes = sum(bundle.num_bytes for bundle in existing)
        self._warn_once(space_warning(self.path, size, at_once=at_once, existing_bytes=existing_bytes))

    def take_finished(self) -> Iterator[Saved]:
        """Yield the saves that have reached the disk since the last call, in order."""
        while self.finished:
            yield self.finished.popleft()

    def wait(self) -> None:
        """Wait until every save is on disk or has failed, also those of another trainer of this process."""
        if self._writer is not None:
            self._writer.wait()
        wait_for_writers(self.bundles)

    def close(self) -> None:
        """Finish pending saves, and stop the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def find(self) -> Latest:
        """Return the newest intact bundle of this run, and the damage of newer ones."""
        wait_for_writers(self.bundles)
        return latest_bundle(self.bundles) if self.bundles.is_dir() else Latest(None, [])

    def _on_saved(self, saved: Saved) -> None:
        """Report a save that has reached the disk; this runs in the writer's thread."""
        path = f"{BUNDLES}/{saved.path.name}"
        self._report("save", path=path, reason=saved.reason, duration_s=saved.duration_s)
        self.finished.append(saved)

    def _warn_once(self, warning: str) -> None:
        """Report a lack of space once in a run."""
        if warning and not self._warned_of_space:
            self._warned_of_space = True
            self._report("alert", message=warning, level="warning")


def _policy_for(keep: object) -> str:
    """Return a policy in place of a wrong value: those of a list, combined.

    >>> _policy_for([last(1), last(3)]), _policy_for(3)
    ('last(1) | last(3)', "last(3) | best('loss')")
    """
    several = list(keep) if isinstance(keep, list | tuple | set) else []
    if several and all(isinstance(one, Policy) for one in several):
        return " | ".join(map(str, several))
    return "last(3) | best('loss')"
