"""A thread that writes single checkpoint files while training continues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor, nn

from flodl.core import CheckpointError, WriteError, log
from flodl.core.files import expand_user
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.usage.calls import CheckpointCallError, explain_creation, explain_methods

from ..files.keywords import suggest_keywords
from ..files.locations import check_suffix
from ..files.save_load import check_tensor_dict
from ..label_names import labels_metadata
from .slots import Slots
from .snapshot import Snapshot, snapshot_cpu


@explain_methods(CheckpointCallError)
@explain_creation(CheckpointCallError, example="Write FileWriter().")
class FileWriter:
    """Saves checkpoint files while training continues: `save` copies the tensors, a thread writes them.

    Files are written in the order of the calls, each atomically. At most `depth` saves are in progress; when
    all are, `save` waits. A failed save is logged and listed in `failures`, and does not stop the run; with
    `errors="raise"`, the next `save`, `wait` or `close` raises it. Pending saves are written before the
    program ends.

    >>> import tempfile, torch
    >>> from flodl.checkpoint import read_checkpoint
    >>> path, weight = f"{tempfile.mkdtemp()}/best.fdl", torch.zeros(2)
    >>> with FileWriter() as writer:
    ...     saved = writer.save(path, {"weight": weight})
    ...     weight += 1  # the copy does not change
    >>> saved.result().name, read_checkpoint(path)[0]
    ('best.fdl', {'weight': tensor([0., 0.])})
    """

    def __init__(self, *, depth: int = 1, errors: Literal["report", "raise"] = "report") -> None:
        depth = as_integer(depth)
        if not is_integer(depth, at_least=1):
            raise CheckpointError(f"depth={depth!r}. Pass an integer >= 1.")
        if errors not in ("report", "raise"):
            raise CheckpointError(f"errors={errors!r}. Use 'report' or 'raise'.")
        self._depth, self._raises = depth, errors == "raise"
        self._is_closed = False
        self._failures: list[BaseException] = []
        self._unraised: list[BaseException] = []
        self._start()

    def _start(self) -> None:
        # The interpreter waits for the thread of an executor before it ends.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="flodl-file-writer")
        self._slots, self._process = Slots(self._depth), os.getpid()

    @suggest_keywords
    def save(
        self,
        target: str | os.PathLike[str],
        state: nn.Module | Snapshot | Mapping[str, Tensor],
    ) -> Future[Path]:
        """Copy a model, a snapshot or named tensors, to be written to a file; return a future of its path."""
        self._raise_failure()
        if self._is_closed:
            raise CheckpointError("the writer is closed. Create a new one to continue saving.")
        if not isinstance(target, str | os.PathLike):
            raise CheckpointError(
                f"the target is {a_type(target)}. Pass the path of a file, such as 'model.fdl'."
            )
        check_suffix(target)
        path = expand_user(target).absolute()
        if self._process != os.getpid():  # a forked child has no threads of its parent
            self._start()
        self._slots.acquire(wait=True)
        try:
            future = self._executor.submit(self._write, _snapshot_of(state), path)
        except BaseException:
            self._slots.release()
            raise
        return future

    def wait(self) -> None:
        """Return when every save so far is on disk or has failed."""
        if self._process == os.getpid():
            self._slots.wait_until_free()
        self._raise_failure()

    def close(self) -> None:
        """Write pending saves, end the thread, and raise any failure not raised yet."""
        self._is_closed = True
        if self._process == os.getpid():
            self._executor.shutdown()
        self._raise_failure()

    @property
    def is_idle(self) -> bool:
        """Whether no save is in progress."""
        return self._process != os.getpid() or self._slots.are_free

    @property
    def failures(self) -> tuple[BaseException, ...]:
        """The error of every save that failed."""
        return tuple(self._failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._unraised.clear()  # every failure is in `failures`; the other error ends the run
        self.close()

    def _write(self, snapshot: Snapshot, path: Path) -> Path:
        try:
            snapshot.save(path)
        except BaseException as error:
            self._failures.append(error)
            if self._raises or not isinstance(error, WriteError):
                self._unraised.append(error)
            else:
                log.error("%s The run continues.", error)
            raise
        finally:
            self._slots.release()
        return path

    def _raise_failure(self) -> None:
        if self._unraised:
            raise self._unraised.pop(0)


def _snapshot_of(state: Any) -> Snapshot:
    """Copy a model, a snapshot or named tensors."""
    if isinstance(state, Snapshot):
        return state
    if callable(take := getattr(type(state), "snapshot_cpu", None)):
        taken: Snapshot = take(state)
        return taken
    tensors = state.state_dict() if isinstance(state, nn.Module) else state
    check_tensor_dict(tensors)
    return Snapshot(snapshot_cpu(dict(tensors)), metadata=labels_metadata(tensors))
