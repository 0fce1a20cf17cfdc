"""Averages the weights of a rank with those of other ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from flodl.core.errors import DistributedError
from flodl.distributed.coordination import Reduce

from .backends import card_of
from .errors import ReductionFailed
from .flat_state import FlatState
from .groups import Groups
from .outer import Mean, OuterOptimizer
from .rounds import Reduction, Round
from .store import LOOPBACK
from .streams import Background, Foreground
from .versions import NO_VERSION, Snapshot, Snapshots, Spares, Version
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
        card = card_of(state, backend=backend, wire=wire, outer=repr(self.outer))
        self._groups = Groups(card, host=host)
        self._rank = -1
        self._held: Version | None = None
        self._outcome: _Outcome | None = None
        self._spares = Spares(state)
        self._snapshots = Snapshots(state, self._spares)
        self._background = Background(state.device) if keep_local else Foreground()

    @property
    def host(self) -> str:
        """The address at which this rank listens for other ranks; set it before the first reduction."""
        return self._groups.host

    @host.setter
    def host(self, host: str) -> None:
        self._groups.host = host

    @property
    def backend(self) -> str:
        """The backend of the last process group; "none" before the first, and for a single member."""
        return self._groups.backend

    @property
    def reason(self) -> str:
        """Why this backend was chosen."""
        return self._groups.reason

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
        self._background.mark()

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

    @torch.no_grad()
    def capture(self, steps: int) -> None:
        """Keep the current weights as the contribution after `steps` steps since the base version.

        Only needed with `keep_local`. `steps` counts all steps since the base, like the weight of a `Reduce`.
        """
        self._snapshots.capture(steps)
        self._background.mark()

    @torch.no_grad()
    def drop(self) -> None:
        """Discard all progress since the base version: the model gets the consensus back."""
        self._forget()
        self._snapshots.clear()
        if self._held is not None:
            self.state.write(self._held.flat)
            self.state.write_integers(self._held.integers)
        self._background.mark()

    @torch.no_grad()
    def reduce(self, command: Reduce) -> Reduction:
        """Compute the next version in scratch memory, without changing the model or the consensus.

        Raises `ReductionFailed` if another member is lost or does not come before the timeout.
        A command that is already completed returns the same report.
        """
        if self._outcome is not None and self._outcome.command == command:
            return self._outcome.report
        self._forget()
        index = self._check(command)
        try:
            with self._background.stream():
                self._outcome = self._reduce(command, index)
        except (RuntimeError, ReductionFailed) as error:
            self._groups.close(command.generation)
            raise ReductionFailed(
                f"rank {self._rank} could not reduce window {command.window}: {_first_line(error)}",
                ranks=getattr(error, "ranks", ()),
            ) from error
        return self._outcome.report

    def _reduce(self, command: Reduce, index: int) -> _Outcome:
        started = time.monotonic()
        deadline = started + command.timeout_ms / 1000.0
        contributed = self._contribution(command, command.weights[index])
        found = Round(self.state, self._spares, self.outer, self._held, contributed)
        if len(command.members) == 1:
            version = found.alone(command)
            is_same = isinstance(self.outer, Mean) and command.scale == 1.0
            changes = not is_same if contributed is not None else not self.keep_local
        else:
            link = self._groups.find(command.members, command.window, deadline)
            found.wait_ms = self._groups.wait_ms
            try:
                version = found.together(command, link, self._wire, deadline)
            except (RuntimeError, ReductionFailed):
                self._groups.close(command.generation)
                if self.state.device.type == "cpu":
                    # Nothing writes to its vectors any more, now that the connections are closed.
                    self._spares.give(*found.taken)
                else:
                    self._wire = type(self._wire)()
                raise
            changes = True
        reduce_ms = 1000.0 * (time.monotonic() - started) - found.wait_ms
        report = Reduction(found.divergence, found.wait_ms, reduce_ms, found.num_bytes)
        return _Outcome(command, version, contributed, report, changes)

    @torch.no_grad()
    def commit(self) -> None:
        """Adopt the result of `reduce`, as the consensus and as the weights of the model, in place.

        With `keep_local`, steps taken since the contribution survive: θ ← θ + new − contributed.
        """
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            raise DistributedError("commit() needs the result of a reduction; call reduce() before it.")
        new, contributed, old = outcome.version, outcome.contributed, self._held
        if contributed is None and self.keep_local and old is not None:
            # A rank without work may have started to train since: its progress begins at what it holds.
            contributed = Snapshot(0, old.flat, old.integers)
        if outcome.changes_weights and self.keep_local and contributed is not None:
            flat, integers = self.state.read(self._spares.take()), self.state.read_integers()
            self._snapshots.move(flat, integers, contributed, new)
            self.state.write(flat)
            self.state.write_integers(integers)
            self._spares.give(flat)
        elif outcome.changes_weights:
            self.state.write(new.flat)
            self.state.write_integers(new.integers)
        if contributed is None:
            self._snapshots.clear()
        else:
            self._snapshots.rebase(contributed, new if outcome.changes_weights else None)
        if old is not None:
            self._spares.give(old.flat)
        self._held = new
        self._background.mark()

    def abort(self) -> None:
        """Close the process groups, and free blocked calls as far as the backend can.

        A gloo operation that is blocked ends at the latest at the timeout of its reduction.
        """
        self._groups.close(self._groups.generation)

    def _hold(self) -> Version:
        if self._held is None:
            raise DistributedError(
                "this rank does not hold a version yet; it receives one in its first reduction."
            )
        return self._held

    def _forget(self) -> None:
        """Drop a result that was not committed; what was contributed stays."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._spares.give(outcome.version.flat)

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

    def _contribution(self, command: Reduce, weight: int) -> Snapshot | None:
        """Return the weights after `weight` steps: a snapshot, or the current ones if the rank waits."""
        if not self.keep_local and command.attempt == 0:
            self._snapshots.clear()
        if not weight:
            return None
        found = self._snapshots.find(weight)
        if found is None and self.keep_local:
            raise DistributedError(
                f"rank {self._rank} has no snapshot after {weight} steps; it has them after "
                f"{self._snapshots.steps}. Call capture() with the steps since its base version."
            )
        return found or self._snapshots.capture(weight)


def _first_line(error: Exception) -> str:
    """Return what an error says, without the line of C++ code that gloo puts in front."""
    text = re.sub(r"^\[[^\]]*\.\w+:\d+\]\s*", "", str(error).strip())
    return text.splitlines()[0] if text else type(error).__name__
