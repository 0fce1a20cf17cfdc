"""Sums and means that stay on the device until their values are needed.

Reading a number from an accelerator makes the host wait until the device has finished all earlier work. So
values are copied and added up on the device, and `fetch` transfers them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

# Appending a copy to a list is the cheapest way to record a value. The list is added up at this length, so
# that an epoch of any length takes a few kilobytes.
_FOLD_AT = 256
_WITHOUT_FLOAT64 = frozenset({"mps"})


class RunningSum:
    """A running sum of host numbers and device scalars.

    >>> running = RunningSum(0.5)
    >>> running.add(torch.tensor(2.0, dtype=torch.float64))
    >>> fetch([running])
    >>> running.value
    2.5
    """

    def __init__(self, value: float = 0.0) -> None:
        self._host = value
        self._pending: dict[torch.device, list[Tensor]] = {}

    def add(self, value: float | Tensor) -> None:
        """Add a number, or a scalar from `device_copy` or `device_sum`."""
        if not isinstance(value, Tensor):
            self._host += value
            return
        pending = self._pending.setdefault(value.device, [])
        pending.append(value)
        if len(pending) >= _FOLD_AT:
            _fold(pending)

    def absorb(self, other: RunningSum) -> None:
        """Add another running sum."""
        self._host += other._host
        for device, pending in other._pending.items():
            self._pending.setdefault(device, []).extend(pending)

    def fold(self) -> None:
        """Add up the pending values on each device, leaving one scalar per device."""
        for pending in self._pending.values():
            _fold(pending)

    @property
    def value(self) -> float:
        """The sum; requires `fetch`."""
        assert not self._pending, "call fetch() before reading a sum"
        return self._host


class Mean:
    """A running weighted mean: Σ weight·value over Σ weight.

    >>> mean = Mean()
    >>> mean.add(0.5)
    >>> mean.add(0.9, count=3, weight=2.0)  # three values that add up to 0.9, each with weight 2
    >>> round(mean.value, 6)
    0.328571
    """

    def __init__(self, total: float = 0.0, weight: float = 0.0) -> None:
        self.total = RunningSum(total)
        self.weight = RunningSum(weight)

    def add(self, total: float | Tensor, *, count: int = 1, weight: float | Tensor = 1.0) -> None:
        """Add `count` values that sum to `total`, each with that weight."""
        if isinstance(weight, Tensor):
            total, weight = _on_one_device(total, weight)
            # An empty batch often has the value NaN and the weight 0: it must not contribute.
            total = (total * weight).masked_fill(weight == 0, 0.0)
        elif weight != 1.0:
            total = total * weight
        self.total.add(total)
        self.weight.add(weight if count == 1 else weight * count)

    def absorb(self, other: Mean) -> None:
        """Add all values of another mean."""
        self.total.absorb(other.total)
        self.weight.absorb(other.weight)

    def fold(self) -> None:
        """Reduce both sums to one scalar per device."""
        self.total.fold()
        self.weight.fold()

    def copy(self) -> Mean:
        """Return an independent copy."""
        copied = Mean()
        copied.absorb(self)
        return copied

    @property
    def sums(self) -> tuple[RunningSum, RunningSum]:
        """Both sums, for `fetch`."""
        return self.total, self.weight

    @property
    def value(self) -> float:
        """The mean, or NaN if the weights sum to 0; requires `fetch`."""
        weight = self.weight.value
        return self.total.value / weight if weight else float("nan")


def device_copy(scalar: Tensor) -> Tensor:
    """Return a copy of a scalar in double precision, on the same device."""
    copied = scalar.detach().to(_wide_dtype(scalar.device), copy=True)
    return copied.reshape(()) if copied.dim() else copied


def device_sum(values: Tensor) -> Tensor:
    """Return the sum of a tensor in double precision, on the same device."""
    return values.detach().sum(dtype=_wide_dtype(values.device))


def fetch(sums: Iterable[RunningSum]) -> None:
    """Bring every pending sum to the host, with one transfer per device."""
    pending: dict[torch.device, list[tuple[RunningSum, Tensor]]] = defaultdict(list)
    for running in {id(running): running for running in sums}.values():
        running.fold()
        for device, scalars in running._pending.items():
            pending[device].append((running, scalars[0]))
    for device, pairs in pending.items():
        values = torch.stack([scalar for _, scalar in pairs]).tolist()
        for (running, _), value in zip(pairs, values, strict=True):
            running._host += value
            del running._pending[device]


def _fold(pending: list[Tensor]) -> None:
    if len(pending) > 1:
        pending[:] = [torch.stack(pending).sum()]


def _on_one_device(value: float | Tensor, weight: Tensor) -> tuple[float | Tensor, Tensor]:
    """Move one of both to the other's device, but never from an accelerator to the host, which would wait."""
    if not isinstance(value, Tensor) or value.device == weight.device:
        return value, weight
    if value.device.type == "cpu":
        return value.to(weight.device, non_blocking=True), weight
    return value, weight.to(value.device, value.dtype, non_blocking=True)


def _wide_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64
