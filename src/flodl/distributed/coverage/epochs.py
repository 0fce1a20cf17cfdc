"""The epochs of a run, each with its pool; they finish in order."""

from __future__ import annotations

from typing import Any

from flodl.core import DistributedError
from flodl.core.integers import is_integer

from .pool import ChunkPool, Lease


class Epochs:
    """Grants batches of the current epoch. With `overlap`, ranks without work start on the next epoch.

    An epoch is finished when all its positions are committed, and all earlier epochs are finished.

    >>> epochs = Epochs(num_samples=8, batch_size=4, num_epochs=2)
    >>> lease = epochs.grant(0, window=0, batches=5)
    >>> lease.batches, epochs.grant(1, window=0, batches=1)
    (2, None)
    >>> epochs.commit(lease, batches=2)
    8
    >>> epochs.finish(), epochs.grant(1, window=1, batches=1).epoch
    ([0], 1)
    """

    def __init__(
        self,
        *,
        num_samples: int,
        batch_size: int,
        num_epochs: int = 1,
        drop_last: bool = False,
        overlap: bool = False,
    ) -> None:
        if not is_integer(num_epochs, at_least=1):
            raise DistributedError(
                f"expected an integer of at least 1, got {num_epochs!r}.", path="num_epochs"
            )
        self._make = {"num_samples": num_samples, "batch_size": batch_size, "drop_last": drop_last}
        self.num_samples, self.batch_size, self.drop_last = num_samples, batch_size, drop_last
        self.num_epochs, self.overlap = num_epochs, overlap
        self.current = 0
        self._pools = {0: self._new_pool(0)}
        self.batches_per_epoch = self._pools[0].num_batches

    def _new_pool(self, epoch: int) -> ChunkPool:
        return ChunkPool(epoch=epoch, **self._make)  # type: ignore[arg-type]

    @property
    def is_finished(self) -> bool:
        return self.current >= self.num_epochs

    @property
    def free_batches(self) -> int:
        """Batches that can be granted now."""
        free = sum(pool.free_batches for pool in self._pools.values())
        if self.overlap and self._pools:
            free += (self.num_epochs - 1 - max(self._pools)) * self.batches_per_epoch
        return free

    def pool(self, epoch: int) -> ChunkPool:
        if epoch not in self._pools:
            raise DistributedError(f"epoch {epoch} is not open. Open epochs: {sorted(self._pools)}.")
        return self._pools[epoch]

    def grant(self, rank: int, *, window: int, batches: int) -> Lease | None:
        """Lease up to `batches` batches of one epoch; None if there are none."""
        for pool in self._pools.values():
            lease = pool.grant(rank, window=window, batches=batches)
            if lease is not None:
                return lease
        following = max(self._pools, default=self.num_epochs) + 1
        if batches < 1 or not self.overlap or following >= self.num_epochs:
            return None
        self._pools[following] = self._new_pool(following)
        return self._pools[following].grant(rank, window=window, batches=batches)

    def holds(self, lease: Lease) -> bool:
        pool = self._pools.get(lease.epoch)
        return pool is not None and pool.holds(lease.ticket)

    def commit(self, lease: Lease, *, batches: int) -> int:
        """Record the first batches of a lease as trained; return the samples."""
        pool = self._pools.get(lease.epoch) or self.pool(lease.epoch)
        return pool.commit(lease.ticket, batches)

    def give_back(self, lease: Lease) -> None:
        self.pool(lease.epoch).give_back(lease.ticket)

    def finish(self) -> list[int]:
        """Close the epochs that are complete, in order, and open the next; return the closed ones."""
        closed = []
        while not self.is_finished and self._pools[self.current].is_complete:
            closed.append(self.current)
            del self._pools[self.current]
            self.current += 1
            if not self._pools and not self.is_finished:
                self._pools[self.current] = self._new_pool(self.current)
        return closed

    def state(self) -> dict[str, Any]:
        return {
            **self._make,
            "num_epochs": self.num_epochs,
            "overlap": self.overlap,
            "current": self.current,
            "pools": [pool.state() for pool in self._pools.values()],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], *, keep_leases: bool = True) -> Epochs:
        names = ("num_samples", "batch_size", "drop_last", "num_epochs", "overlap")
        epochs = cls(**{name: state[name] for name in names})
        epochs.current = state["current"]
        pools = [ChunkPool.from_state(each, keep_leases=keep_leases) for each in state["pools"]]
        epochs._pools = {pool.epoch: pool for pool in pools}
        if not pools and not epochs.is_finished:
            # It was finished, and continues for more epochs.
            epochs._pools[epochs.current] = epochs._new_pool(epochs.current)
        return epochs
