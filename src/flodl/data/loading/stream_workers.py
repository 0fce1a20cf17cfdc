"""An iterable read by several processes, each its own part of it; their batches come in turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils import worker as worker_module

from flodl.core.errors import DataError

from ..batch import Handed
from ..sampling.epoch import Epoch
from ..sources.streams import Stream
from .workers import Failure, Workers, failed


@dataclass(frozen=True)
class _Request:
    """Asks a part for its next batch; one of another turn begins anew, from a number of items on."""

    turn: int
    part: int
    num_parts: int
    epoch: Epoch


@dataclass(frozen=True)
class _Given:
    part: int
    batch: Any
    position: int
    source_state: Any


class StreamWorkers:
    """Gives a stream as torch's loader does: a batch of each worker, then one of each again.

    The source says itself which worker reads what, by `torch.utils.data.get_worker_info()`. The order depends
    on the number of workers, and on nothing else. The state behind a batch has the place of every part, so
    that each goes on by itself: at once where the source keeps its place, else by reading again.
    """

    def __init__(self, stream: Stream, num_workers: int) -> None:
        self._stream, self._num_parts = stream, num_workers
        self._workers = Workers(_PartFetcher(stream), num_workers)
        self._turns = itertools.count(1)

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        count = self._num_parts
        state = epoch.source_state or {"next": 0, "given": [0] * count, "states": [None] * count}
        given, states, position = list(state["given"]), list(state["states"]), epoch.start
        live = set(range(count))
        for answer in self._workers.batches(self._requests(epoch, state["next"], given, states)):
            if isinstance(answer, _Given):
                position += answer.position - given[answer.part]
                given[answer.part], states[answer.part] = answer.position, answer.source_state
                place = {"next": (answer.part + 1) % count, "given": [*given], "states": [*states]}
                yield Handed(answer.batch, position, place)
            elif answer is not None:
                live.discard(answer)
                if not live:
                    break
        if position == 0:
            self._stream.refuse_nothing(epoch.number)

    def close(self) -> None:
        """End the processes."""
        self._workers.close()

    def _requests(
        self, epoch: Epoch, first: int, given: list[int], states: list[Any]
    ) -> Iterator[_Request | None]:
        """Give requests without end; torch hands them to its workers in turns, beginning with the first."""
        turn = next(self._turns)
        asked = [
            _Request(
                turn, part, self._num_parts, replace(epoch, start=given[part], source_state=states[part])
            )
            for part in range(self._num_parts)
        ]
        yield from [None] * first
        yield from asked[first:]
        yield from itertools.cycle(asked)


class _PartFetcher(Dataset[Any]):
    """Reads one part, in the process of a worker."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._info: _WorkerInfo | None = None
        self._turn = 0
        self._batches: Iterator[tuple[Any, int, Any]] = iter(())

    def __getitem__(self, request: _Request | None) -> _Given | Failure | int | None:
        """Give the next batch, the number of a part that has come to its end, or nothing for nothing."""
        if request is None:
            return None
        try:
            return self._next(request)
        except Exception:
            return failed()

    def _next(self, request: _Request) -> _Given | int:
        if self._info is None:
            self._info = _WorkerInfo(get_worker_info(), self._stream.source)
            worker_module._worker_info = self._info  # type: ignore[assignment]
        if self._info.number != request.part:
            raise DataError(
                f"torch handed part {request.part} to worker {self._info.number}. Use num_workers=1 with it."
            )
        if request.turn != self._turn:
            self._turn = request.turn
            self._batches = self._stream.batches(request.epoch, part=(request.part, request.num_parts))
        found = next(self._batches, None)
        if found is None:
            return request.part
        if request.num_parts > 1 and not self._info.was_asked:
            raise DataError(
                f"the source does not divide itself among {request.num_parts} workers, so each of them would "
                "give every sample. Let its __iter__ give the part of torch.utils.data.get_worker_info().id, "
                "or use num_workers=1."
            )
        return _Given(request.part, *found)


class _WorkerInfo:
    """What `get_worker_info` gives to the source; it notes whether anybody wanted to know."""

    def __init__(self, info: Any, source: Any) -> None:
        self._info, self.dataset, self.was_asked = info, source, False
        self.number: int = info.id

    def __getattr__(self, name: str) -> Any:
        self.was_asked = self.was_asked or name in ("id", "num_workers")
        return getattr(self._info, name)
