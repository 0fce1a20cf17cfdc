"""Averages the weights of a rank with those of other ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import DistError

from flodl.core.errors import DistributedError
from flodl.distributed.coordination import Reduce

from .errors import ReductionFailed
from .flat_state import FlatState
from .groups import Groups
from .outer import Mean, OuterOptimizer
from .rounds import Reduction, Round
from .store import LOOPBACK
from .vectors import add_local
from .versions import NO_VERSION, Snapshot, Spares, Version
from .wire import WIRES


@dataclass
class _Outcome:
    """A result that waits for its commit."""

    command: Reduce
    version: Version
    contributed: Snapshot | None
    report: Reduction
    # False if the weights of this rank are the result.
    changes_weights: bool


class Reducer:
    """Averages the progress of ranks, each measured from the version that it started from.

    `backend` is "gloo", "nccl", "host" (gloo over host copies of CUDA tensors) or "auto"; `wire` is "fp32" or
    "bf16". With `keep_local`, ranks train while a reduction runs: call `capture` on arrival, and steps taken
    since then survive the commit.

    A rank calls `rebuild` for each generation, then `reduce`, and `commit` once all members have the result.
    After a `ReductionFailed`, nothing has changed: `rebuild` and `reduce` repeat it.

    >>> model = torch.nn.Linear(2, 1)
    >>> reducer = Reducer(FlatState.of(model))
    >>> reducer.version
    -1
    >>> reducer.rebuild(None, generation=1, rank=0, members=(0,), timeout_s=1.0)
    >>> command = Reduce(0, 1, 0, (0,), (10,), (0,), donor=0, timeout_ms=1000.0, reason="")
    >>> reducer.reduce(command).num_bytes
    0
    >>> reducer.commit()
    >>> reducer.version
    1
    """

    def __init__(
        self,
        state: FlatState,
        *,
        backend: str = "auto",
        wire: str = "fp32",
        outer: OuterOptimizer | None = None,
        keep_local: bool = False,
        host: str = LOOPBACK,
    ) -> None:
        if wire not in WIRES:
            raise DistributedError(f"wire is {wire!r}. Expected one of {', '.join(WIRES)}.")
        self.state, self.keep_local = state, keep_local
        self.outer: OuterOptimizer = outer if outer is not None else Mean()
        self._wire = WIRES[wire]()
        card = {"layout": state.layout, "wire": wire, "outer optimizer": repr(self.outer)}
        self._groups = Groups(card, host=host)
        self._rank = -1
        self._held: Version | None = None
        self._snapshots: list[Snapshot] = []
        self._outcome: _Outcome | None = None
        self._spares = Spares(state)

    @property
    def version(self) -> int:
        """The version of `consensus`; -1 before the first."""
        return NO_VERSION if self._held is None else self._held.number

    @property
    def consensus(self) -> Tensor:
        """The flat weights of `version`, bit-identical on all ranks that hold it. Do not modify them."""
        return self._hold().flat

    @property
    def integers(self) -> Tensor:
        """The integer buffers of `version`."""
        return self._hold().integers

    def outer_state(self) -> dict[str, Tensor]:
        """Return what the outer optimizer keeps from window to window, for a save point."""
        momentum = self._hold().momentum
        return {} if momentum is None else {"momentum": momentum}

    def begin(self, version: int, outer_state: Mapping[str, Tensor] | None = None) -> None:
        """Make the current weights of the model the consensus of this version: the start of a run.

        A rank that joins does not call it: it receives the version in its first reduction. The donor of the
        first window calls it only to continue from a save point with the state of an outer optimizer.
        """
        momentum = None
        if self.outer.has_momentum:
            momentum = torch.zeros_like(self.state.empty()[: self.state.num_parameters])
            if outer_state:
                momentum.copy_(outer_state["momentum"])
        flat = self.state.read(self._spares.take())
        self._held = Version(version, flat, self.state.read_integers(), momentum)

    def rebuild(
        self, store: Store | None, generation: int, rank: int, members: tuple[int, ...], timeout_s: float
    ) -> None:
        """Enter a generation: close the groups of the last one. Does not wait for the other members.

        The members of a reduction form their process group when it starts, so a late rank does not delay
        them; `timeout_s` limits that. A single member needs no store.
        """
        if rank not in members:
            raise DistributedError(
                f"rank {rank} is not in generation {generation}, whose members are {members}."
            )
        self._rank = rank
        self._groups.rebuild(store, generation, rank, timeout_s)

    def capture(self, steps: int) -> None:
        """Keep the current weights as the contribution after `steps` steps since the base version.

        Only needed with `keep_local`. `steps` counts all steps since the base, like the weight of a `Reduce`.
        """
        flat = self.state.read(self._spares.take())
        self._snapshots.append(Snapshot(steps, flat, self.state.read_integers()))

    def drop(self) -> None:
        """Give up all progress since the base version: the model gets the consensus back."""
        self._forget()
        self._spares.give(*[snapshot.flat for snapshot in self._snapshots])
        self._snapshots = []
        if self._held is not None:
            self.state.write(self._held.flat)
            self.state.write_integers(self._held.integers)

    @torch.no_grad()
    def reduce(self, command: Reduce) -> Reduction:
        """Compute the next version in scratch memory, without changing the model or the consensus.

        Raises `ReductionFailed` if another member is lost or does not come before the timeout.
        A command that is already completed returns the same report.
        """
        if self._outcome is not None and self._outcome.command == command:
            return self._outcome.report
        self._forget()
        started = time.monotonic()
        deadline = started + command.timeout_ms / 1000.0
        index = self._check(command)
        contributed = self._contribution(command.weights[index])
        found = Round(self.state, self._spares, self.outer, self._held, contributed)
        is_alone = len(command.members) == 1
        try:
            if is_alone:
                version, report = found.alone(command)
            else:
                link = self._groups.find(command.members, command.window, deadline)
                version, report = found.together(command, link, self._wire, started, deadline)
        except (DistError, RuntimeError) as error:
            self._groups.close()
            reason = str(error).strip() or type(error).__name__
            raise ReductionFailed(
                f"the reduction of window {command.window} failed: {reason.splitlines()[0]}"
            ) from error
        except ReductionFailed:
            self._groups.close()
            raise
        changes = not (is_alone and isinstance(self.outer, Mean) and contributed is not None)
        self._outcome = _Outcome(command, version, contributed, report, changes)
        return report

    @torch.no_grad()
    def commit(self) -> None:
        """Adopt the result of `reduce`, as the consensus and as the weights of the model, in place.

        With `keep_local`, steps taken since the contribution survive: θ ← θ + new − contributed.
        """
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            raise DistributedError("commit() needs the result of a reduction; call reduce() before it.")
        new, contributed, old = outcome.version, outcome.contributed, self._held
        keeps = self.keep_local and contributed is not None
        if outcome.changes_weights and keeps:
            assert contributed is not None
            local = self.state.read(self._spares.take())
            self._add(local, new, contributed)
            self.state.write(local)
            self.state.write_integers(self.state.read_integers() + (new.integers - contributed.integers))
            self._spares.give(local)
        elif outcome.changes_weights:
            self.state.write(new.flat)
            self.state.write_integers(new.integers)
        self._rebase(outcome)
        if old is not None:
            self._spares.give(old.flat)
        self._held = new

    def abort(self) -> None:
        """Close the process groups, and free blocked calls as far as the backend can."""
        self._groups.close()

    def _hold(self) -> Version:
        if self._held is None:
            raise DistributedError(
                "this rank does not hold a version yet; it receives one in its first reduction."
            )
        return self._held

    def _forget(self) -> None:
        """Drop a result that was not committed; a snapshot stays."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._spares.give(outcome.version.flat)
            if outcome.contributed is not None and not self.keep_local:
                self._spares.give(outcome.contributed.flat)

    def _check(self, command: Reduce) -> int:
        """Return the index of this rank, if the command fits what the rank holds."""
        if command.generation != self._groups.generation or self._rank not in command.members:
            raise ReductionFailed(
                f"the reduction belongs to generation {command.generation} with members {command.members}, "
                f"and this is rank {self._rank} in generation {self._groups.generation}."
            )
        index = command.members.index(self._rank)
        base, weight = command.bases[index], command.weights[index]
        if self._held is None and command.donor == self._rank:
            self.begin(command.window)
        if (weight or base == command.window) and base != self.version:
            raise DistributedError(
                f"the reduction expects rank {self._rank} to hold version {base}; it holds {self.version}."
            )
        return index

    def _contribution(self, weight: int) -> Snapshot | None:
        if not weight:
            return None
        if not self.keep_local:
            return Snapshot(weight, self.state.read(self._spares.take()), self.state.read_integers())
        for snapshot in self._snapshots:
            if snapshot.steps == weight:
                return snapshot
        raise DistributedError(
            f"rank {self._rank} has no snapshot after {weight} steps; it has them after "
            f"{[each.steps for each in self._snapshots]}. Call capture() with the steps since its base."
        )

    def _rebase(self, outcome: _Outcome) -> None:
        """Later snapshots continue from the new version; earlier ones are part of it."""
        contributed = outcome.contributed
        if contributed is None:
            self._spares.give(*[snapshot.flat for snapshot in self._snapshots])
            self._snapshots = []
            return
        later = [each for each in self._snapshots if each.steps > contributed.steps]
        for each in later:
            each.steps -= contributed.steps
            if outcome.changes_weights:
                self._add(each.flat, outcome.version, contributed)
        self._spares.give(
            *[each.flat for each in self._snapshots if each not in later and each is not contributed]
        )
        self._snapshots = later
        self._spares.give(contributed.flat)

    def _add(self, local: Tensor, new: Version, contributed: Snapshot) -> None:
        """Move weights that were trained since the contribution to the new version.

        Buffers that changed since keep their values: a running variance plus a difference could be negative.
        """
        num = self.state.num_parameters
        add_local(local[:num], new.flat[:num], contributed.flat[:num])
        buffers = local[num:]
        torch.where(buffers == contributed.flat[num:], new.flat[num:], buffers, out=buffers)
