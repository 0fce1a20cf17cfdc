"""Bundles written beside training, by one thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self

from flodl.core import CheckpointError, WriteError, log
from flodl.core.files import expand_user
from flodl.core.integers import is_integer
from flodl.core.paths import suggestion

from ..bundles.bundle import clean_bundles, encode_parts, numbers, write_bundle
from ..bundles.listing import prune_while_saving
from ..bundles.retention import Policy
from .snapshot import Staged, Staging


@dataclass(frozen=True)
class Saved:
    """A bundle that is on the disk: its folder, what it was saved with, and how long the writing took."""

    path: Path
    step: int
    metrics: Mapping[str, float]
    reason: str
    duration_s: float


@dataclass(frozen=True)
class _Job:
    step: int
    structures: Mapping[str, Any]
    staged: Mapping[str, Staged]
    metrics: Mapping[str, float]
    reason: str


class BackgroundWriter:
    """Save a run while it goes on: `save` copies the state and returns, a thread does the rest.

    At most `depth` saves are on their way; at the next one `save` waits, or, with `when_full="skip"`, returns
    False and saves nothing. `on_saved` is called, from the thread, with every bundle that has reached the
    disk. A full disk or a closed folder does not end the run: the earlier bundles stay, `on_error` (by
    default a line in the log) hears of the first failure of a row, and `failures` has them all. With
    `errors="raise"` the next `save`, `wait` or `close` raises instead.

    >>> import tempfile, torch
    >>> from flodl.checkpoint import last, latest_bundle
    >>> root, weight = tempfile.mkdtemp(), torch.zeros(2)
    >>> with BackgroundWriter(root, keep=last(2)) as writer:
    ...     for step in (1, 2, 3):
    ...         weight += 1
    ...         taken = writer.save(step, {"model": {"weight": weight}})
    >>> latest_bundle(root).bundle.step, sorted(os.listdir(root))
    (3, ['step-00000002', 'step-00000003'])
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: Policy | None = None,
        depth: int = 1,
        when_full: Literal["wait", "skip"] = "wait",
        errors: Literal["report", "raise"] = "report",
        on_error: Callable[[WriteError], object] | None = None,
        on_saved: Callable[[Saved], object] | None = None,
    ) -> None:
        if not is_integer(depth, at_least=1):
            raise CheckpointError(f"depth={depth!r}. Give a whole number from 1 up.")
        for name, value, known in (
            ("when_full", when_full, ("wait", "skip")),
            ("errors", errors, ("report", "raise")),
        ):
            if value not in known:
                raise CheckpointError(f"{name}={value!r}. Use {known[0]!r} or {known[1]!r}.")
        if keep is not None and not isinstance(keep, Policy):
            raise CheckpointError(f"keep={keep!r}. Give a policy, such as last(3) | best('loss').")
        self._waits = when_full == "wait"
        self._keep, self._told_of_metrics = keep, False
        # Absolute: a program that goes to another folder later saves where it said.
        self._worker = _Worker(
            expand_user(root).absolute(), keep, depth, errors == "raise", on_error, on_saved
        )
        self._thread = threading.Thread(target=self._worker.run, name="flodl-writer", daemon=True)
        self._thread.start()
        # Also when the program ends without close(): what was taken is written.
        self._finish = weakref.finalize(self, _end, self._worker, self._thread)

    def save(
        self,
        step: int,
        parts: Mapping[str, Any],
        *,
        metrics: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> bool:
        """Copy the parts of a run and write them later; False when it was skipped because the queue is full.

        On a GPU the copy is started, not waited for. What cannot be saved at all raises here, and so do
        metrics without one that `keep` looks at; `{}` says that nothing was measured. `on_saved` is given
        the `reason`.
        """
        self._worker.raise_failure()
        if not self._finish.alive:
            raise CheckpointError("the writer is closed. Make another one to go on saving.")
        encoded = encode_parts(step, parts)
        values = numbers(metrics)
        self._check_metrics(step, metrics)
        if not self._worker.slots.take(wait=self._waits):
            log.verbose("step %d is not saved: the writer is still busy", step)
            return False
        try:
            staged = {name: self._worker.staging.copy(tensors) for name, (_, tensors) in encoded.items()}
        except BaseException:
            self._worker.slots.give_back()
            raise
        structures = {name: structure for name, (structure, _) in encoded.items()}
        self._worker.jobs.put(_Job(step, structures, staged, values, reason))
        return True

    def wait(self) -> None:
        """Return when everything taken so far is on the disk, or has failed."""
        self._worker.slots.wait_until_free()
        self._worker.raise_failure()

    def close(self) -> None:
        """Write what was taken, end the thread, and raise a failure that nobody has heard of."""
        self._finish()
        self._worker.raise_failure()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or waiting to be."""
        return self._worker.slots.are_free

    @property
    def last_saved(self) -> Path | None:
        """The newest bundle that this writer has finished."""
        return self._worker.last_saved

    @property
    def failures(self) -> tuple[BaseException, ...]:
        """Every save that failed, as the error that it failed with."""
        return tuple(self._worker.failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._finish()
        for failure in self._worker.unheard:
            log.error("while another error ends the run: %s", failure)

    def _check_metrics(self, step: int, metrics: Mapping[str, Any] | None) -> None:
        """Refuse metrics that lack what `keep` looks at; a save without any is told of once."""
        for name in self._keep.metrics if self._keep is not None else ():
            if metrics and name not in metrics:
                hint = suggestion(name, metrics, known_as="metrics")
                raise CheckpointError(f"keep={self._keep} looks at {name!r}, which step {step} lacks. {hint}")
            if metrics is None and not self._told_of_metrics:
                self._told_of_metrics = True
                log.warn(
                    "step %d is saved without metrics, and keep=%s looks at %r: it cannot be among the best. "
                    "Give save() metrics={%r: …}, or {} where nothing was measured.",
                    step,
                    self._keep,
                    name,
                    name,
                )


class _Worker:
    """What the thread works on; it knows nothing of the writer, so that a forgotten one is collected."""

    def __init__(
        self,
        root: Path,
        keep: Policy | None,
        depth: int,
        raises: bool,
        on_error: Callable[[WriteError], object] | None,
        on_saved: Callable[[Saved], object] | None,
    ) -> None:
        self._root, self._keep, self._raises = root, keep, raises
        self._on_error = on_error or (lambda failure: log.error("%s The run goes on.", failure))
        self._on_saved = on_saved or (lambda saved: None)
        self.slots = _Slots(depth)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.staging = Staging()
        self.failures: list[BaseException] = []
        self.unheard: list[BaseException] = []
        self.last_saved: Path | None = None
        self._failed_in_a_row = 0
        with suppress(OSError):  # a folder that cannot be read will be told when it cannot be written
            clean_bundles(root)

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                self._save(job)
            except WriteError as error:
                self._failed(error)
            except BaseException as error:
                self.failures.append(error)
                self.unheard.append(error)  # not a matter of the disk: always heard
            finally:
                for staged in job.staged.values():
                    self.staging.take_back(staged)
                self.slots.give_back()

    def _save(self, job: _Job) -> None:
        started_s = time.perf_counter()
        for staged in job.staged.values():
            staged.wait()
        parts = {name: (job.structures[name], staged.tensors) for name, staged in job.staged.items()}
        path = self.last_saved = write_bundle(self._root, job.step, parts, metrics=job.metrics)
        duration_s = time.perf_counter() - started_s
        self._tell(self._on_saved, Saved(path, job.step, job.metrics, job.reason, duration_s))
        if self._failed_in_a_row:
            log.msg("saving works again at step %d; %d saves failed", job.step, self._failed_in_a_row)
            self._failed_in_a_row = 0
        if self._keep is not None:
            prune_while_saving(self._root, self._keep)

    def _failed(self, error: WriteError) -> None:
        self.failures.append(error)
        self._failed_in_a_row += 1
        if self._raises:
            self.unheard.append(error)
        elif self._failed_in_a_row == 1:
            self._tell(self._on_error, error)

    def _tell(self, listener: Callable[[Any], object], news: Any) -> None:
        try:
            listener(news)
        except BaseException as wrong:  # sys.exit() is meant for the program, not for this thread
            self.unheard.append(wrong)

    def raise_failure(self) -> None:
        if self.unheard:
            raise self.unheard.pop(0)


class _Slots:
    """Counts the saves that are on their way, waiting ones included."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0
        self._changed = threading.Condition()

    def take(self, *, wait: bool) -> bool:
        with self._changed:
            free = self._changed.wait_for(lambda: self._taken < self._most, None if wait else 0)
            self._taken += free
            return free

    def give_back(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()

    def wait_until_free(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0)

    @property
    def are_free(self) -> bool:
        return self._taken == 0


def _end(worker: _Worker, thread: threading.Thread) -> None:
    worker.jobs.put(None)
    if thread is threading.current_thread():
        # The cycle collector came by here. A thread cannot wait for itself, but the program can.
        atexit.register(thread.join)
    else:
        thread.join()
