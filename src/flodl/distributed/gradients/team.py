"""`GradientTeam`: ranks that average their gradients in every update, and can lose members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flodl.core import DistributedError
from flodl.distributed.reduction import (
    FlatState,
    Groups,
    Link,
    card_of,
    connect_store,
    gradient_store,
)

from .reducer import GradientReducer

# Ranks of one team make the same updates, so they wait for each other only if one of them is held up.
TIMEOUT_S = 60.0


class AveragingCosts(NamedTuple):
    """Time that a rank spent in averages, and the bytes that it sent for them."""

    wait_ms: float
    reduce_ms: float
    num_bytes: int


class GradientTeam:
    """Averages gradients over the members of a window; `meet` says who they are.

    If a member is lost, a call raises a DistributedError, and the next `meet` needs another generation.
    """

    def __init__(
        self,
        state: FlatState,
        *,
        rank: int,
        store: tuple[str, int],
        backend: str = "auto",
        address: str = "127.0.0.1",
    ) -> None:
        host, port = store
        self._store = gradient_store(connect_store(port, host))
        self._groups = Groups(card_of(state, backend=backend, wire="fp32", outer="gradients"), host=address)
        self._rank, self._device = rank, state.device
        self._generation = -1
        self._link: Link | None = None
        self._reducer: GradientReducer | None = None
        self.index, self.size = 0, 1
        # Since the start of the window.
        self._spent_s, self._num_bytes = 0.0, 0

    def meet(self, generation: int, window: int, members: tuple[int, ...]) -> None:
        """Form the group of these members, or use it again."""
        if generation != self._generation:
            self._groups.rebuild(self._store, generation, self._rank, TIMEOUT_S)
            self._generation = generation
        self.index, self.size = members.index(self._rank), len(members)
        self._spent_s, self._num_bytes = 0.0, 0
        link = self._groups.find(members, window, time.monotonic() + TIMEOUT_S) if self.size > 1 else None
        if link is not self._link or self._reducer is None:
            self._link = link
            group = None if link is None else _Group(link, self._count)
            self._reducer = None if group is None else GradientReducer(group, through_host=False)

    def _count(self, seconds: float, num_bytes: int) -> None:
        self._spent_s += seconds
        self._num_bytes += num_bytes

    def __call__(self, gradients: Sequence[Tensor], weight: float) -> None:
        """Average gradients in place, weighted by samples."""
        if self._reducer is not None:
            self._reducer(gradients, weight)

    def costs(self) -> AveragingCosts:
        """Return what averaging has cost this rank in the window; all members call this together.

        The rank that never waits spends the least time in averages; the others waited for the rest.
        """
        spent_us = round(self._spent_s * 1e6)
        least_us = min(self.gather(spent_us))
        return AveragingCosts((spent_us - least_us) / 1000.0, least_us / 1000.0, self._num_bytes)

    def gather(self, number: int) -> list[int]:
        """Return the numbers of all members."""
        if self._link is None:
            return [number]
        found = torch.empty(self.size, dtype=torch.int64, device=self._device)
        mine = torch.tensor([number], dtype=torch.int64, device=self._device)
        with _explained():
            self._link.gather(found, mine, time.monotonic() + TIMEOUT_S)
        return [int(value) for value in found.tolist()]

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is set on a member; all members call this together."""
        if self._link is None or not flags:
            return list(flags)
        found = torch.tensor(flags, dtype=torch.int64, device=self._device)
        with _explained():
            self._link.max_(found, time.monotonic() + TIMEOUT_S)
        return [bool(value) for value in found.tolist()]

    def share(self, data: bytes, source: int) -> bytes:
        """Return the data of the member with the index `source`."""
        if self._link is None:
            return data
        length = self.gather(len(data))[source]
        tensor = torch.zeros(length, dtype=torch.uint8, device=self._device)
        if source == self.index:
            tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with _explained():
            self._link.broadcast_(tensor, source, time.monotonic() + TIMEOUT_S)
        found: bytes = tensor.cpu().numpy().tobytes()
        return found

    def close(self) -> None:
        """Close the group, so that other members notice at once that this one does not continue."""
        self._link = self._reducer = None
        self._groups.close(self._groups.generation)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise DistributedError(f"a rank is gone or did not answer in time: {error}") from error


class _Group:
    """A link with the interface of a process group; operations have a deadline.

    `count` receives the seconds and the bytes of each operation.
    """

    def __init__(self, link: Link, count: Callable[[float, int], None]) -> None:
        self._link, self._count = link, count

    def size(self) -> int:
        return self._link.size

    def allreduce(self, tensors: list[Tensor], options: Any) -> _Group:
        operation = self._link.sum_ if options.reduceOp == dist.ReduceOp.SUM else self._link.max_
        tensor = tensors[0]
        if tensor.is_cuda:
            # Otherwise, the time of the backward would be counted here.
            torch.cuda.current_stream(tensor.device).synchronize()
        started_s = time.monotonic()
        num_bytes = operation(tensor, started_s + TIMEOUT_S)
        self._count(time.monotonic() - started_s, num_bytes)
        return self

    def wait(self) -> None:
        """Do nothing: operations of a link are complete when they return."""
