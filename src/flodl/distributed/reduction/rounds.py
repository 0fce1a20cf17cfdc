"""One reduction: from what the members contribute to the next version."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.distributed.coordination import Reduce

from .errors import ReductionFailed
from .flat_state import FlatState
from .links import Link
from .outer import Mean, OuterOptimizer
from .vectors import advance, divide_, progress, progress_of_finite
from .versions import Snapshot, Spares, Version
from .wire import Wire

_LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Reduction:
    """What a rank reports: its distance from the mean, the times it waited and reduced, the bytes it sent.

    `divergence` is ‖replica − mean‖ / ‖mean‖, or None if the rank contributed nothing; on the CPU, that of a
    sample of large models. Waiting ends when the last member is ready. The rest, up to true completion on the
    device, is reducing. `num_bytes` counts what this rank sends.
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
        # Vectors that are in use until the device is done.
        self.taken: list[Tensor] = []

    def alone(self, command: Reduce) -> Version:
        """The reduction of a single member: with `Mean`, its weights are the next version, bit for bit."""
        held, contributed = self._held, self._contributed
        assert held is not None
        flat = self._take()
        if contributed is None:
            flat.copy_(held.flat)
            self._wait_for_device()
            return Version(command.window + 1, flat, held.integers, held.momentum)
        self.divergence = 0.0
        flat.copy_(contributed.flat)
        momentum = held.momentum
        if not isinstance(self._outer, Mean) or command.scale != 1.0:
            num = self._state.num_parameters
            momentum = None if momentum is None else momentum.clone()
            progress(flat[:num], contributed.flat[:num], held.flat[:num], 1.0)
            advance(flat[:num], 1.0, held.flat[:num], None, None, self._outer, momentum, command.scale)
            self._state.round_(flat)
        self._wait_for_device()
        return Version(command.window + 1, flat, contributed.integers.clone(), momentum)

    def together(self, command: Reduce, link: Link, wire: Wire, deadline: float) -> Version:
        """The reduction of several members."""
        num = self._state.num_parameters
        flat = self._take()
        self._prepare(flat[:num], wire)
        ready = time.monotonic()
        self._wait_for_members(command, link, deadline)
        self.wait_ms += 1000.0 * (time.monotonic() - ready)
        current = self._current(command, link, deadline)
        momentum, integers = current.momentum, current.integers
        if sum(command.weights):
            momentum = self._average_progress(flat[:num], command, current, link, wire, deadline)
            num_stepped = sum(weight > 0 for weight in command.weights)
            self._average_buffers(flat[num:], link, num_stepped, deadline)
            integers = self._largest_integers(link, deadline)
            self._state.round_(flat)
        else:
            flat.copy_(current.flat)
        self._wait_for_device()
        self._spares.give(*[vector for vector in self.taken if vector is not flat])
        return Version(command.window + 1, flat, integers, momentum)

    def _take(self) -> Tensor:
        vector = self._spares.take()
        self.taken.append(vector)
        return vector

    def _prepare(self, out: Tensor, wire: Wire) -> bool:
        """Write what this rank sends; return False if it is known to contain NaN or infinity."""
        contributed, held, num = self._contributed, self._held, out.numel()
        if contributed is None or held is None:
            out.zero_()
            return True
        given = out, contributed.flat[:num], held.flat[:num], wire.scale(contributed.steps)
        if self._state.has_constants:
            return progress_of_finite(*given)
        progress(*given)
        return True

    def _average_progress(
        self, flat: Tensor, command: Reduce, current: Version, link: Link, wire: Wire, deadline: float
    ) -> Tensor | None:
        """Turn progress into the new version, and return the new momentum."""
        num = flat.numel()
        own = None if self._contributed is None else self._contributed.flat[:num]
        base = None if self._held is None else self._held.flat[:num]
        divisor = wire.divisor(command.weights)
        for _ in range(2):
            self.num_bytes += wire.combine_(link, flat, command.weights, deadline)
            momentum = None if current.momentum is None else current.momentum.clone()
            self.divergence, is_finite = advance(
                flat, divisor, current.flat[:num], own, base, self._outer, momentum, command.scale
            )
            if is_finite:
                if self._state.has_constants and not math.isfinite(self.divergence or 0.0):
                    self.divergence = None
                return momentum
            # All members get here, because all of them have the same bits. Repeat it without constants that
            # are infinite, unless a rank has other values that are not finite.
            self._state.has_constants = True
            self._check_finite(command, link, self._prepare(flat, wire), deadline)
        raise ReductionFailed("the mean progress of the ranks contains NaN or infinity.")

    def _wait_for_members(self, command: Reduce, link: Link, deadline: float) -> None:
        """Wait for the last member, and see that all of them mean the same reduction."""
        mine = [command.window, command.attempt]
        rows = self._exchange_numbers(command, link, mine, deadline)
        other = tuple(rank for rank, row in rows.items() if row != mine)
        if other:
            raise ReductionFailed(
                f"ranks {list(other)} reduce window and attempt {rows[other[0]]}, not {mine}.", ranks=other
            )

    def _check_finite(self, command: Reduce, link: Link, is_finite: bool, deadline: float) -> None:
        rows = self._exchange_numbers(command, link, [int(is_finite)], deadline)
        broken = tuple(rank for rank, row in rows.items() if not row[0])
        if broken:
            raise ReductionFailed(
                f"the weights of ranks {list(broken)} contain NaN or infinity, so they cannot be averaged.",
                ranks=broken,
            )

    def _exchange_numbers(
        self, command: Reduce, link: Link, numbers: list[int], deadline: float
    ) -> dict[int, list[int]]:
        # On the host, unless the link needs them on the device: each copy would wait for it.
        device = self._state.device if link.needs_device else torch.device("cpu")
        mine = torch.tensor(numbers, dtype=torch.int64, device=device)
        found = torch.empty(len(numbers) * link.size, dtype=torch.int64, device=device)
        self.num_bytes += link.gather(found, mine, deadline)
        return dict(zip(command.members, found.view(link.size, -1).tolist()))

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
