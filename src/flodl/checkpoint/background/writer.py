"""A thread that writes bundles while training continues."""

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
from flodl.core.integers import as_integer, is_integer
from flodl.core.paths import suggestion
from flodl.core.usage.calls import CheckpointCallError, explain_creation, explain_methods

from ..bundles.bundle import (
    as_floats,
    clean_bundles,
    encode_parts,
    folder_to_write,
    metadata_of,
    write_bundle,
)
from ..bundles.listing import prune_while_saving
from ..bundles.retention import Policy
from .slots import Slots
from .snapshot import Staged, Staging

# The workers of this process, also those whose writers are unknown to whoever reads their folder.
_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


@dataclass(frozen=True)
class Saved:
    """A bundle that is on disk: its folder, step, metrics, reason, and how long writing took."""

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
    metadata: Mapping[str, str]
    reason: str


@explain_methods(CheckpointCallError)
@explain_creation(CheckpointCallError, example="Write BackgroundWriter('bundles').")
class BackgroundWriter:
    """Saves a run while it continues: `save` copies the state and returns, a thread writes it.

    At most `depth` saves are in progress. When all are, `save` waits or, with `when_full="skip"`, returns
    False without saving. The thread calls `before_write` before it writes a bundle, for what must be on disk
    first, and `on_saved` with every bundle that is on disk. A full disk or a
    read-only folder does not stop the run: earlier bundles stay, `on_error` (by default, a log line) is
    called for the first of consecutive failures, and `failures` lists them all. With `errors="raise"`, the
    next `save`, `wait` or `close` raises instead.

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
        before_write: Callable[[], object] | None = None,
    ) -> None:
        depth = as_integer(depth)
        if not is_integer(depth, at_least=1):
            raise CheckpointError(f"depth={depth!r}. Pass an integer >= 1.")
        for name, value, known in (
            ("when_full", when_full, ("wait", "skip")),
            ("errors", errors, ("report", "raise")),
        ):
            if value not in known:
                raise CheckpointError(f"{name}={value!r}. Use {known[0]!r} or {known[1]!r}.")
        if keep is not None and not isinstance(keep, Policy):
            raise CheckpointError(f"keep={keep!r}. Pass a policy, such as last(3) | best('loss').")
        self._waits = when_full == "wait"
        self._keep, self._warned_about_metrics = keep, False
        # Absolute, so that changing the working directory later makes no difference.
        folder = folder_to_write(root).absolute()
        raises = errors == "raise"
        self._start(lambda: _Worker(folder, keep, depth, raises, on_error, on_saved, before_write))

    def _start(self, make: Callable[[], _Worker]) -> None:
        self._make_worker, self._started = make, make()
        thread = threading.Thread(target=self._started.run, name="flodl-writer", daemon=True)
        self._started.thread = thread
        thread.start()
        # Pending saves are also written if the program ends without close().
        self._finish = weakref.finalize(self, _stop, self._started, thread)

    @property
    def _worker(self) -> _Worker:
        """The worker of this process: a forked child has no threads of its parent, so it starts its own.

        The saves that were pending at the fork belong to the parent, which writes them.
        """
        if self._started.process != os.getpid() and self._finish.alive:
            self._finish.detach()
            self._start(self._make_worker)
        return self._started

    def save(
        self,
        step: int,
        parts: Mapping[str, Any],
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        reason: str = "",
    ) -> bool:
        """Copy the parts of a run to be written later; return False if skipped because the queue is full.

        A copy from a GPU is started, not waited for. Raises if a part cannot be saved, or if `metrics` lacks
        one that `keep` needs; pass `{}` if nothing was measured. `on_saved` receives the `reason`. For
        `metadata`, see `save_bundle`.
        """
        self._worker.raise_failure()
        if not self._finish.alive:
            raise CheckpointError("the writer is closed. Create a new one to continue saving.")
        encoded = encode_parts(step, parts)
        values = as_floats(metrics)
        self._check_metrics(step, metrics)
        if not self._worker.slots.acquire(wait=self._waits):
            log.verbose("step %d is not saved: the writer is still busy", step)
            return False
        try:
            staged = {name: self._worker.staging.copy(tensors) for name, (_, tensors) in encoded.items()}
        except BaseException:
            self._worker.slots.release()
            raise
        structures = {name: structure for name, (structure, _) in encoded.items()}
        self._worker.jobs.put(_Job(step, structures, staged, values, metadata_of(parts, metadata), reason))
        return True

    def wait(self) -> None:
        """Return when every save so far is on disk or has failed."""
        self._worker.slots.wait_until_free()
        self._worker.raise_failure()

    def close(self) -> None:
        """Write pending saves, end the thread, and raise any failure not raised yet."""
        self._finish()
        self._started.raise_failure()

    @property
    def is_idle(self) -> bool:
        """Whether no save is in progress."""
        return self._worker.slots.are_free

    @property
    def last_saved(self) -> Path | None:
        """The newest bundle that this writer has finished."""
        return self._worker.last_saved

    @property
    def failures(self) -> tuple[BaseException, ...]:
        """The error of every save that failed."""
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
        for failure in self._started.unraised:
            log.error("while another error ends the run: %s", failure)

    def _check_metrics(self, step: int, metrics: Mapping[str, Any] | None) -> None:
        """Raise if the metrics lack one that `keep` needs; warn once about a save without metrics."""
        for name in self._keep.metrics if self._keep is not None else ():
            if metrics and name not in metrics:
                hint = suggestion(name, metrics, known_as="metrics")
                raise CheckpointError(
                    f"keep={self._keep} needs the metric {name!r}, which step {step} lacks. {hint}"
                )
            if metrics is None and not self._warned_about_metrics:
                self._warned_about_metrics = True
                log.warn(
                    "step %d is saved without metrics, but keep=%s needs %r: it cannot be among the best. "
                    "Pass metrics={%r: …} to save(), or {} if nothing was measured.",
                    step,
                    self._keep,
                    name,
                    name,
                )


def wait_for_writers(root: Path) -> None:
    """Return when every save that this process has begun in a folder is on disk or has failed.

    A writer that belongs to someone else may be in the middle of a save. One that is called from its own
    thread does not wait for itself.
    """
    for worker in list(_workers):
        is_here = worker.root == root and worker.process == os.getpid()
        if is_here and worker.thread is not threading.current_thread():
            worker.slots.wait_until_free()


class _Worker:
    """The state of the thread; without a reference to the writer, so that an unused writer is collected."""

    def __init__(
        self,
        root: Path,
        keep: Policy | None,
        depth: int,
        raises: bool,
        on_error: Callable[[WriteError], object] | None,
        on_saved: Callable[[Saved], object] | None,
        before_write: Callable[[], object] | None,
    ) -> None:
        self.root, self._keep, self._raises = root, keep, raises
        self.thread: threading.Thread | None = None
        self.process = os.getpid()
        self._on_error = on_error or (lambda failure: log.error("%s The run continues.", failure))
        self._on_saved = on_saved or (lambda saved: None)
        self._before_write = before_write or (lambda: None)
        self.slots = Slots(depth)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.staging = Staging()
        self.failures: list[BaseException] = []
        self.unraised: list[BaseException] = []
        self.last_saved: Path | None = None
        self._consecutive_failures = 0
        with suppress(OSError):  # the first save reports an unusable folder
            clean_bundles(root)
        _workers.add(self)

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                self._save(job)
            except WriteError as error:
                self._handle_write_error(error)
            except BaseException as error:
                self.failures.append(error)
                self.unraised.append(error)  # not a disk problem: always raised
            finally:
                for staged in job.staged.values():
                    self.staging.release(staged)
                self.slots.release()

    def _save(self, job: _Job) -> None:
        started_s = time.perf_counter()
        for staged in job.staged.values():
            staged.wait()
        try:
            self._before_write()
        except BaseException as error:  # sys.exit() is meant for the program, not for this thread
            self.unraised.append(error)
        parts = {name: (job.structures[name], staged.tensors) for name, staged in job.staged.items()}
        path = write_bundle(self.root, job.step, parts, metrics=job.metrics, metadata=job.metadata)
        self.last_saved = path
        duration_s = time.perf_counter() - started_s
        self._call(self._on_saved, Saved(path, job.step, job.metrics, job.reason, duration_s))
        if self._consecutive_failures:
            log.msg("saving works again at step %d; %d saves failed", job.step, self._consecutive_failures)
            self._consecutive_failures = 0
        if self._keep is not None:
            prune_while_saving(self.root, self._keep)

    def _handle_write_error(self, error: WriteError) -> None:
        self.failures.append(error)
        self._consecutive_failures += 1
        if self._raises:
            self.unraised.append(error)
        elif self._consecutive_failures == 1:
            self._call(self._on_error, error)

    def _call(self, callback: Callable[[Any], object], argument: Any) -> None:
        try:
            callback(argument)
        except BaseException as error:  # sys.exit() is meant for the program, not for this thread
            self.unraised.append(error)

    def raise_failure(self) -> None:
        if self.unraised:
            raise self.unraised.pop(0)


def _stop(worker: _Worker, thread: threading.Thread) -> None:
    if worker.process != os.getpid():
        return  # a forked child that never used the writer
    worker.jobs.put(None)
    if thread is threading.current_thread():
        # The garbage collector ran in the writer thread. A thread cannot join itself, but the program can.
        atexit.register(thread.join)
    else:
        thread.join()
