"""Read an iterable with several worker processes, one part each; their batches alternate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils import worker as worker_module

from flodl.core.errors import DataError

from ..batch import PositionedBatch
from ..sampling.epoch import Epoch
from ..sources.streams import Stream
from ..worker_errors import Failure
from .workers import Workers


@dataclass(frozen=True)
class _Request:
    """Requests the next batch of a part; a new iteration restarts the part at the start of `epoch`."""

    iteration: int
    part: int
    num_parts: int
    epoch: Epoch


@dataclass(frozen=True)
class _PartBatch:
    part: int
    batch: Any
    position: int
    source_state: Any


class StreamWorkers:
    """Yields a stream as torch's DataLoader does: one batch from each worker in turn.

    The source itself decides which worker reads what, with `torch.utils.data.get_worker_info()`. The order
    depends only on the number of workers. The state after a batch has the position of every part, so that
    each resumes by itself: directly if the source has `state_dict`, else by reading again.
    """

    def __init__(self, stream: Stream, num_workers: int) -> None:
        self._stream, self._num_parts = stream, num_workers
        self._workers = Workers(_PartFetcher(stream), num_workers)
        self._iterations = itertools.count(1)

    def batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        count = self._num_parts
        state = epoch.source_state or {"next": 0, "given": [0] * count, "states": [None] * count}
        given, states, position = list(state["given"]), list(state["states"]), epoch.start
        unfinished = set(range(count))
        for answer in self._workers.batches(self._requests(epoch, state["next"], given, states)):
            if isinstance(answer, _PartBatch):
                position += answer.position - given[answer.part]
                given[answer.part], states[answer.part] = answer.position, answer.source_state
                state = {"next": (answer.part + 1) % count, "given": [*given], "states": [*states]}
                yield PositionedBatch(answer.batch, position, state)
            elif answer is not None:
                unfinished.discard(answer)
                if not unfinished:
                    break
        if position == 0:
            self._stream.raise_no_batch(epoch.number)

    def close(self) -> None:
        """End the processes."""
        self._workers.close()

    def _requests(
        self, epoch: Epoch, first: int, given: list[int], states: list[Any]
    ) -> Iterator[_Request | None]:
        """Yield requests endlessly; torch assigns them to its workers in turn, starting with the first."""
        iteration = next(self._iterations)
        requests = [
            _Request(
                iteration, part, self._num_parts, replace(epoch, start=given[part], source_state=states[part])
            )
            for part in range(self._num_parts)
        ]
        yield from [None] * first
        yield from requests[first:]
        yield from itertools.cycle(requests)


class _PartFetcher(Dataset[Any]):
    """Reads one part, in a worker process."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._info: _WorkerInfo | None = None
        self._iteration = 0
        self._batches: Iterator[tuple[Any, int, Any]] = iter(())

    def __getitem__(self, request: _Request | None) -> _PartBatch | Failure | int | None:
        """Return the next batch, the number of the part if it has ended, or None for None."""
        if request is None:
            return None
        try:
            return self._next(request)
        except Exception as error:
            return Failure.of(error)

    def _next(self, request: _Request) -> _PartBatch | int:
        if self._info is None:
            self._info = _WorkerInfo(get_worker_info(), self._stream.source)
            worker_module._worker_info = self._info  # type: ignore[assignment]
        if self._info.number != request.part:
            raise DataError(
                f"torch assigned part {request.part} to worker {self._info.number}. Use num_workers=1."
            )
        if request.iteration != self._iteration:
            self._iteration = request.iteration
            self._batches = self._stream.batches(request.epoch, part=(request.part, request.num_parts))
        batch = next(self._batches, None)
        if batch is None:
            return request.part
        if request.num_parts > 1 and not self._info.was_read:
            raise DataError(
                f"the source does not divide itself among {request.num_parts} workers, so each of them would "
                "yield every sample. In its __iter__, yield only the part for "
                "torch.utils.data.get_worker_info().id, or use num_workers=1."
            )
        return _PartBatch(request.part, *batch)


class _WorkerInfo:
    """The result of `get_worker_info` for the source; records whether it was read."""

    def __init__(self, info: Any, source: Any) -> None:
        self._info, self.dataset, self.was_read = info, source, False
        self.number: int = info.id

    def __getattr__(self, name: str) -> Any:
        self.was_read = self.was_read or name in ("id", "num_workers")
        return getattr(self._info, name)
