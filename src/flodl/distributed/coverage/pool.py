"""The positions of one epoch, handed out to ranks in whole batches and committed exactly once."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from flodl.core import DistributedError

from .ranges import RangeSet

Range = tuple[int, int]


class Lease(NamedTuple):
    """The ranges [start, stop) of positions that a rank trains on, not committed yet."""

    ticket: int
    rank: int
    window: int
    batches: int
    ranges: tuple[Range, ...]
    epoch: int = 0


class ChunkPool:
    """Grants ranges of positions, takes them back from lost ranks, and records what was committed.

    All ranges begin and end at a multiple of the batch size, or at the end of the epoch, so that a position
    is always in the same batch, whichever rank trains it.

    >>> pool = ChunkPool(10, batch_size=4)
    >>> first, second = pool.grant(0, window=0, batches=1), pool.grant(1, window=0, batches=9)
    >>> first.ranges, second.ranges, second.batches
    (((0, 4),), ((4, 10),), 2)
    >>> pool.commit(second.ticket)
    6
    >>> pool.give_back_rank(0)
    [0]
    >>> pool.grant(1, window=1, batches=1).ranges
    ((0, 4),)
    """

    def __init__(self, num_samples: int, *, batch_size: int, drop_last: bool = False, epoch: int = 0) -> None:
        if batch_size < 1:
            raise DistributedError(
                f"expected an integer of at least 1, got {batch_size!r}.", path="batch_size"
            )
        self.total = num_samples // batch_size * batch_size if drop_last else num_samples
        if self.total < 1:
            raise DistributedError(
                f"an epoch of {num_samples} samples has no batch of {batch_size}. "
                "Use a smaller batch size or drop_last=False.",
                path="num_samples",
            )
        self.batch_size, self.epoch = batch_size, epoch
        self._cursor = 0
        self._returned: list[Range] = []
        self._num_returned_batches = 0
        self._leases: dict[int, Lease] = {}
        self._committed = RangeSet()
        self._next_ticket = 0

    @property
    def num_batches(self) -> int:
        return -(-self.total // self.batch_size)

    @property
    def free_batches(self) -> int:
        """Batches that can still be granted."""
        return -(-(self.total - self._cursor) // self.batch_size) + self._num_returned_batches

    @property
    def committed(self) -> RangeSet:
        return self._committed

    @property
    def is_complete(self) -> bool:
        return self._committed.length == self.total

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    def holds(self, ticket: int) -> bool:
        """Return whether a lease is open: neither committed nor given back."""
        return ticket in self._leases

    def grant(self, rank: int, *, window: int, batches: int) -> Lease | None:
        """Lease up to `batches` free batches to a rank; None if there are none."""
        size = self.batch_size
        if batches < 1:
            return None
        if not self._returned:
            return self._grant_fresh(rank, window, batches)
        ranges: list[Range] = []
        wanted = batches
        while wanted and self._returned:
            start, stop = heapq.heappop(self._returned)
            num = -(-(stop - start) // size)
            if num > wanted:
                heapq.heappush(self._returned, (start + wanted * size, stop))
                stop, num = start + wanted * size, wanted
            self._num_returned_batches -= num
            wanted -= num
            ranges.append((start, stop))
        if wanted and self._cursor < self.total:
            start = self._cursor
            self._cursor = stop = min(self.total, start + wanted * size)
            wanted -= -(-(stop - start) // size)
            ranges.append((start, stop))
        return self._lease(rank, window, batches - wanted, tuple(ranges))

    def _grant_fresh(self, rank: int, window: int, batches: int) -> Lease | None:
        """The usual case: nothing was given back, and a lease is one range."""
        start, size = self._cursor, self.batch_size
        stop = start + batches * size
        if stop > self.total:
            stop = self.total
            batches = -(-(stop - start) // size)
            if not batches:
                return None
        self._cursor = stop
        return self._lease(rank, window, batches, ((start, stop),))

    def _lease(self, rank: int, window: int, batches: int, ranges: tuple[Range, ...]) -> Lease:
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        lease = self._leases[ticket] = Lease(ticket, rank, window, batches, ranges, self.epoch)
        return lease

    def commit(self, ticket: int, batches: int | None = None) -> int:
        """Record the first `batches` batches of a lease as trained, free the rest; return the samples."""
        lease = self._take(ticket)
        left = lease.batches if batches is None else batches
        if left == lease.batches and len(lease.ranges) == 1:
            start, stop = lease.ranges[0]
            self._committed.add(start, stop)
            return stop - start
        if not 0 <= left <= lease.batches:
            self._leases[ticket] = lease
            raise DistributedError(
                f"rank {lease.rank} trained {batches} batches of a lease of {lease.batches} in epoch "
                f"{lease.epoch}. Expected at most the batches of the lease."
            )
        size, samples = self.batch_size, 0
        for start, stop in lease.ranges:
            middle = min(stop, start + left * size)
            if middle > start:
                self._committed.add(start, middle)
                samples += middle - start
                left -= -(-(middle - start) // size)
            if middle < stop:
                self._free(middle, stop)
        return samples

    def give_back(self, ticket: int) -> None:
        """Free all positions of a lease, because its work is lost."""
        for start, stop in self._take(ticket).ranges:
            self._free(start, stop)

    def give_back_rank(self, rank: int) -> list[int]:
        """Free all leases of a rank; return their tickets."""
        tickets = [ticket for ticket, lease in self._leases.items() if lease.rank == rank]
        for ticket in tickets:
            self.give_back(ticket)
        return tickets

    def _take(self, ticket: int) -> Lease:
        lease = self._leases.pop(ticket, None)
        if lease is None:
            raise DistributedError(
                f"lease {ticket} of epoch {self.epoch} is not open: it was committed or given back before."
            )
        return lease

    def _free(self, start: int, stop: int) -> None:
        heapq.heappush(self._returned, (start, stop))
        self._num_returned_batches += -(-(stop - start) // self.batch_size)

    def state(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "total": self.total,
            "batch_size": self.batch_size,
            "epoch": self.epoch,
            "cursor": self._cursor,
            "returned": sorted(map(list, self._returned)),
            "committed": [list(each) for each in self._committed],
            "next_ticket": self._next_ticket,
            "leases": [
                [each.ticket, each.rank, each.window, each.batches, [list(found) for found in each.ranges]]
                for each in self._leases.values()
            ],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], *, keep_leases: bool = True) -> ChunkPool:
        """Continue from `state()`. Without its leases, what was in flight is free, for any set of ranks.

        >>> pool = ChunkPool(8, batch_size=4)
        >>> lease = pool.grant(0, window=0, batches=2)
        >>> ChunkPool.from_state(pool.state(), keep_leases=False).free_batches
        2
        """
        pool = cls(state["total"], batch_size=state["batch_size"], epoch=state["epoch"])
        pool._cursor, pool._next_ticket = state["cursor"], state["next_ticket"]
        for start, stop in state["returned"]:
            pool._free(start, stop)
        for start, stop in state["committed"]:
            pool._committed.add(start, stop)
        for ticket, rank, window, batches, ranges in state["leases"]:
            found = tuple((start, stop) for start, stop in ranges)
            pool._leases[ticket] = Lease(ticket, rank, window, batches, found, pool.epoch)
            if not keep_leases:
                pool.give_back(ticket)
        return pool
