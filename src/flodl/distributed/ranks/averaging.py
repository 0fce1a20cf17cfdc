"""The part of a rank in reductions: it reduces, and adopts versions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flodl.core import DistributedError
from flodl.distributed.coordination import Commit, Failed, Reduce, Reduced

from .faults import Faults
from .messages import Adopted, Report

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from flodl.distributed.reduction import Reducer


class Averaging:
    """Carries out `Reduce` and `Commit`. The rank waits meanwhile, so its weights are the contribution."""

    def __init__(
        self,
        rank: int,
        reducer: Reducer,
        store: Store,
        send: Callable[[object], None],
        faults: Faults,
        *,
        digests: bool = False,
    ) -> None:
        self._rank, self._store, self._send = rank, store, send
        self.reducer, self._faults, self._digests = reducer, faults, digests
        self._generation = -1
        # Over what the last reduction went, and why.
        self._link = ("none", "")
        self._scratch: Tensor | None = None
        # The time that this rank spent in reductions since it was last asked.
        self._spent_ms = 0.0

    def arrive(self, steps: int) -> None:
        """The rank trained a plan, and its weights are usable."""

    def settle(self) -> None:
        """Bring the weights up to date; called between two batches."""

    def take_spent_ms(self) -> float:
        spent_ms, self._spent_ms = self._spent_ms, 0.0
        return spent_ms

    def is_finite(self) -> bool:
        """Return whether all weights are finite, apart from constants such as masks."""
        reducer = self.reducer
        if self._scratch is None:
            self._scratch = reducer.state.empty()
        flat = reducer.state.read(self._scratch)
        if flat.sum().isfinite().item():
            return True
        # A sum may overflow, and a constant may be infinite: look at each value.
        changed = flat != reducer.consensus
        return not (changed & ~flat.isfinite()).any().item()

    def reduce(self, command: Reduce) -> None:
        """Reduce, and report the result or the failure."""
        from flodl.distributed.reduction import ReductionFailed

        started_s = time.perf_counter()
        self._faults.reach("reduce", command.window)
        if command.generation != self._generation:
            timeout_s = command.timeout_ms / 1000.0
            self.reducer.rebuild(self._store, command.generation, self._rank, command.members, timeout_s)
            self._generation = command.generation
        try:
            found = self.reducer.reduce(command)
        except ReductionFailed as error:
            self._send(Report(Failed(self._rank, command.window, command.generation, str(error))))
            return
        finally:
            self._spent_ms += 1000.0 * (time.perf_counter() - started_s)
        self._faults.reach("reduced", command.window)
        event = Reduced((self._rank,), command.window, command.generation, found.reduce_ms, found.divergence)
        extras = {"wait_ms": found.wait_ms, "reduce_ms": found.reduce_ms, "num_bytes": found.num_bytes}
        self._send(Report(event, {**extras, **self._new_link()}))
        self._faults.reach("reported", command.window)

    def _new_link(self) -> dict[str, tuple[str, str]]:
        """Return the backend and why it was chosen, if they have changed."""
        before, self._link = self._link, (self.reducer.backend, self.reducer.reason)
        return {} if self._link == before else {"link": self._link}

    def commit(self, command: Commit) -> None:
        """Adopt the new version."""
        self._faults.reach("commit", command.window)
        self.reducer.commit()
        if self.reducer.version != command.version:
            raise DistributedError(
                f"rank {self._rank} holds version {self.reducer.version} after the commit of version "
                f"{command.version}. This is a defect; please report it."
            )
        if self._digests:
            self._send(Adopted(self._rank, command.version, digest(self.reducer.consensus)))
        self._faults.reach("adopted", command.window)

    def refuse(self) -> None:
        """Drop what is not committed; the rank receives the next version."""
        self.reducer.drop()


def digest(flat: Tensor) -> str:
    """Return a hash of the bits of a tensor."""
    return hashlib.blake2b(to_bytes(flat), digest_size=8).hexdigest()


def to_bytes(flat: Tensor) -> bytes:
    data: bytes = flat.detach().cpu().contiguous().numpy().tobytes()
    return data
