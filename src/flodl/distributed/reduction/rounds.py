"""One reduction: from what the members contribute to the next version."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.distributed.coordination import Reduce

from .errors import ReductionFailed
from .flat_state import FlatState
from .links import Link
from .outer import Mean, OuterOptimizer
from .vectors import advance, divide_, progress
from .versions import Snapshot, Spares, Version
from .wire import Wire

_LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Reduction:
    """What a rank reports: its distance from the mean, the times it waited and reduced, the bytes it sent.

    `divergence` is ‖replica − mean‖ / ‖mean‖, or None if the rank contributed nothing. Waiting ends when the
    last member is ready. The rest, up to true completion on the device, is reducing.
    """

    divergence: float | None
    wait_ms: float
    reduce_ms: float
    num_bytes: int


class Round:
    """Computes the next version from what a rank holds and contributes; changes neither."""

    def __init__(
        self,
        state: FlatState,
        spares: Spares,
        outer: OuterOptimizer,
        held: Version | None,
        contributed: Snapshot | None,
    ) -> None:
        self.divergence: float | None = None
        self.wait_ms = 0.0
        self.num_bytes = 0
        self._state, self._spares, self._outer = state, spares, outer
        self._held, self._contributed = held, contributed
        # Vectors that are free once the device is done.
        self._received: list[Tensor] = []

    def alone(self, command: Reduce) -> Version:
        """The reduction of a single member: with `Mean`, its weights are the next version, bit for bit."""
        held, contributed = self._held, self._contributed
        assert held is not None
        flat = self._spares.take()
        if contributed is None:
            flat.copy_(held.flat)
            return Version(command.window + 1, flat, held.integers, held.momentum)
        self.divergence = 0.0
        flat.copy_(contributed.flat)
        momentum = held.momentum
        if not isinstance(self._outer, Mean):
            num = self._state.num_parameters
            momentum = None if momentum is None else momentum.clone()
            progress(flat[:num], contributed.flat[:num], held.flat[:num])
            advance(flat[:num], held.flat[:num], None, None, self._outer, momentum)
            self._state.round_(flat)
        self._wait_for_device()
        return Version(command.window + 1, flat, contributed.integers.clone(), momentum)

    def together(self, command: Reduce, link: Link, wire: Wire, deadline: float) -> Version:
        """The reduction of several members."""
        num = self._state.num_parameters
        flat = self._spares.take()
        is_finite = self._begin(flat[:num])
        ready = time.monotonic()
        self._wait_for_members(command, link, is_finite, deadline)
        self.wait_ms += 1000.0 * (time.monotonic() - ready)
        current = self._current(command, link, deadline)
        momentum, integers = current.momentum, current.integers
        if sum(command.weights):
            self.num_bytes += wire.mean_(link, flat[:num], command.weights, deadline)
            own = None if self._contributed is None else self._contributed.flat[:num]
            base = None if self._held is None else self._held.flat[:num]
            momentum = None if momentum is None else momentum.clone()
            self.divergence = advance(flat[:num], current.flat[:num], own, base, self._outer, momentum)
            num_stepped = sum(weight > 0 for weight in command.weights)
            self._average_buffers(flat[num:], link, num_stepped, deadline)
            integers = self._largest_integers(link, deadline)
            self._state.round_(flat)
        else:
            flat.copy_(current.flat)
        self._wait_for_device()
        self._spares.give(*self._received)
        return Version(command.window + 1, flat, integers, momentum)

    def _begin(self, out: Tensor) -> bool:
        contributed, held = self._contributed, self._held
        if contributed is None or held is None:
            out.zero_()
            return True
        num = out.numel()
        return progress(out, contributed.flat[:num], held.flat[:num])

    def _wait_for_members(self, command: Reduce, link: Link, is_finite: bool, deadline: float) -> None:
        """Wait for the last member, and see that all of them mean the same reduction."""
        mine = [command.window, command.attempt, int(is_finite)]
        header = torch.tensor(mine, dtype=torch.int64, device=self._state.device)
        found = torch.empty(len(mine) * link.size, dtype=torch.int64, device=self._state.device)
        self.num_bytes += link.gather(found, header, deadline)
        rows = dict(zip(command.members, found.view(link.size, -1).tolist()))
        other = tuple(rank for rank, row in rows.items() if row[:2] != mine[:2])
        if other:
            raise ReductionFailed(
                f"ranks {list(other)} reduce window and attempt {rows[other[0]][:2]}, not {mine[:2]}.",
                ranks=other,
            )
        broken = tuple(rank for rank, row in rows.items() if not row[2])
        if broken:
            raise ReductionFailed(
                f"the weights of ranks {list(broken)} contain NaN or infinity, so they cannot be averaged.",
                ranks=broken,
            )

    def _current(self, command: Reduce, link: Link, deadline: float) -> Version:
        """Return the current version; a donor sends it if a member does not hold it."""
        held = self._held
        is_holder = held is not None and command.bases[link.index] == command.window
        if all(base == command.window for base in command.bases):
            assert held is not None
            return held
        donor = command.members.index(command.donor)
        if link.index == donor:
            assert held is not None
            current = held
        else:
            integers = torch.empty(self._state.num_integers, dtype=torch.int64, device=self._state.device)
            flat = self._spares.take()
            momentum = (
                torch.empty_like(flat[: self._state.num_parameters]) if self._outer.has_momentum else None
            )
            current = Version(command.window, flat, integers, momentum)
        for tensor in (current.flat, current.integers, current.momentum):
            if tensor is not None and tensor.numel():
                self.num_bytes += link.broadcast_(tensor, donor, deadline)
        return held if is_holder and held is not None else current

    def _average_buffers(self, out: Tensor, link: Link, num_stepped: int, deadline: float) -> None:
        """Average float buffers over the members that stepped, in float64: equal values stay as they are."""
        if not out.numel():
            return
        contributed = self._contributed
        sums = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
        if contributed is not None:
            sums.copy_(contributed.flat[self._state.num_parameters :])
        self.num_bytes += link.sum_(sums, deadline)
        out.copy_(divide_(sums, num_stepped))

    def _largest_integers(self, link: Link, deadline: float) -> Tensor:
        """Return the maximum of integer buffers over the members that stepped."""
        num = self._state.num_integers
        contributed = self._contributed
        if contributed is not None:
            largest = contributed.integers.clone()
        else:
            largest = torch.full((num,), _LOWEST, dtype=torch.int64, device=self._state.device)
        if num:
            self.num_bytes += link.max_(largest, deadline)
        return largest

    def _wait_for_device(self) -> None:
        if self._state.device.type == "cuda":
            torch.cuda.current_stream(self._state.device).synchronize()
