"""Sums and means that are kept on the device and read only when somebody looks.

A number read from an accelerator makes the host wait until the device has finished everything
before it. Here nothing is read while values come in: they are copied, added up on the device, and
fetched together by `settle`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

# Values wait in a list because one copy is the cheapest thing that can be done with each; from this
# many on they are added up, so that an epoch of any length holds a few kilobytes.
_FOLD_AT = 256
_WITHOUT_FLOAT64 = frozenset({"mps"})


class Tally:
    """A running sum of host numbers and device scalars.

    >>> tally = Tally(0.5)
    >>> tally.add(torch.tensor(2.0, dtype=torch.float64))
    >>> settle([tally])
    >>> tally.value
    2.5
    """

    __slots__ = ("_host", "_waiting")

    def __init__(self, value: float = 0.0) -> None:
        self._host = value
        self._waiting: dict[torch.device, list[Tensor]] = {}

    def add(self, value: float | Tensor) -> None:
        """Add a number, or a scalar that `device_copy` or `device_sum` made."""
        if not isinstance(value, Tensor):
            self._host += value
            return
        waiting = self._waiting.setdefault(value.device, [])
        waiting.append(value)
        if len(waiting) >= _FOLD_AT:
            _fold(waiting)

    def absorb(self, other: Tally) -> None:
        """Add everything that another tally holds."""
        self._host += other._host
        for device, waiting in other._waiting.items():
            self._waiting.setdefault(device, []).extend(waiting)

    def fold(self) -> None:
        """Add up what waits, on the device, so that one scalar per device is left."""
        for waiting in self._waiting.values():
            _fold(waiting)

    @property
    def value(self) -> float:
        """The sum; `settle` has to come first."""
        assert not self._waiting, "a tally is settled before it is read"
        return self._host


class Mean:
    """A weighted mean in the making: Σ weight·value over Σ weight, both as tallies.

    >>> mean = Mean()
    >>> mean.add(0.5)
    >>> mean.add(0.9, count=3, weight=2.0)  # three values that add up to 0.9, each with weight 2
    >>> round(mean.value, 6)
    0.328571
    """

    __slots__ = ("total", "weight")

    def __init__(self, total: float = 0.0, weight: float = 0.0) -> None:
        self.total = Tally(total)
        self.weight = Tally(weight)

    def add(self, total: float | Tensor, *, count: int = 1, weight: float | Tensor = 1.0) -> None:
        """Count `count` values that add up to `total`, each with that weight."""
        if isinstance(weight, Tensor):
            total, weight = _together(total, weight)
            # An empty batch often comes as NaN with the weight 0: it has to count for nothing.
            total = (total * weight).masked_fill(weight == 0, 0.0)
        elif weight != 1.0:
            total = total * weight
        self.total.add(total)
        self.weight.add(weight if count == 1 else weight * count)

    def absorb(self, other: Mean) -> None:
        """Count everything that another mean has counted."""
        self.total.absorb(other.total)
        self.weight.absorb(other.weight)

    def fold(self) -> None:
        """Shrink to one scalar per device and tally."""
        self.total.fold()
        self.weight.fold()

    def copy(self) -> Mean:
        """Give a mean that goes its own way from here."""
        twin = Mean()
        twin.absorb(self)
        return twin

    @property
    def tallies(self) -> tuple[Tally, Tally]:
        """Both sums, to be settled."""
        return self.total, self.weight

    @property
    def value(self) -> float:
        """The mean, NaN where the weights add up to nothing; `settle` has to come first."""
        weight = self.weight.value
        return self.total.value / weight if weight else float("nan")


def device_copy(scalar: Tensor) -> Tensor:
    """Copy a scalar in double precision where it lives; what later happens to the source is not seen."""
    copied = scalar.detach().to(_wide(scalar.device), copy=True)
    return copied.reshape(()) if copied.dim() else copied


def device_sum(values: Tensor) -> Tensor:
    """Add up a tensor in double precision where it lives."""
    return values.detach().sum(dtype=_wide(values.device))


def settle(tallies: Iterable[Tally]) -> None:
    """Bring every waiting sum to the host, with one transfer for each device."""
    waiting: dict[torch.device, list[tuple[Tally, Tensor]]] = defaultdict(list)
    for tally in {id(tally): tally for tally in tallies}.values():
        tally.fold()
        for device, scalars in tally._waiting.items():
            waiting[device].append((tally, scalars[0]))
    for device, pairs in waiting.items():
        values = torch.stack([scalar for _, scalar in pairs]).tolist()
        for (tally, _), value in zip(pairs, values, strict=True):
            tally._host += value
            del tally._waiting[device]


def _fold(waiting: list[Tensor]) -> None:
    if len(waiting) > 1:
        waiting[:] = [torch.stack(waiting).sum()]


def _together(value: float | Tensor, weight: Tensor) -> tuple[float | Tensor, Tensor]:
    """Put both on one device, and never from an accelerator to the host: that is what would wait."""
    if not isinstance(value, Tensor) or value.device == weight.device:
        return value, weight
    if value.device.type == "cpu":
        return value.to(weight.device, non_blocking=True), weight
    return value, weight.to(value.device, value.dtype, non_blocking=True)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64
