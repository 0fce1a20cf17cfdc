"""Running means of the loss and of named values, summed on the device, so that reading one costs one sync."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..device.tensors import NARROW


class RunningMeans:
    """Weighted sums that the step itself updates, even in a recording; a non-finite loss is left out.

    >>> means = RunningMeans(torch.device("cpu"))
    >>> for loss, weight in [(2.0, 3), (6.0, 1), (torch.nan, 9)]:
    ...     means.add(torch.tensor(loss), {}, weight=weight, opens=True)
    >>> means.means(), means.bad
    ({'loss': tensor(3., dtype=torch.float64)}, tensor(1.))
    """

    def __init__(self, device: torch.device) -> None:
        # Above zero if a loss in this window was not finite.
        self.bad = torch.zeros((), dtype=torch.float32, device=device)
        # By the names that occur together; the first number of each is the weight.
        self.totals: dict[tuple[str, ...], Tensor] = {}
        self._saved: dict[tuple[str, ...], Tensor] = {}
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self.account: Callable[..., None] = account_on_host if device.type == "cpu" else account

    def using(self, account: Callable[..., None]) -> RunningMeans:
        """Return means that share these sums and add to them with another function."""
        other = RunningMeans.__new__(RunningMeans)
        other.bad, other.totals, other._saved, other._one = self.bad, self.totals, self._saved, self._one
        other.account = account
        return other

    def add(self, loss: Tensor, values: Mapping[str, Tensor], *, weight: int | Tensor, opens: bool) -> None:
        """Add one micro-batch, unless its loss is not finite; the weight may be a tensor on the device."""
        names: tuple[str, ...] = ("loss",)
        row = [self._one, loss]
        for name, value in values.items():
            if value.numel() == 1 and value.device == loss.device:
                names = (*names, name)
                row.append(value)
        total = self.totals.get(names)
        if total is None:
            total = torch.zeros(len(names) + 1, dtype=torch.float64, device=loss.device)
            self.totals[names] = total
        if self.account is account_on_host:
            account_on_host(row, total, self.bad, weight, opens)
            return
        row[0] = self._one.to(loss.device)
        with torch.no_grad():
            self.account(row, total, self.bad, weight, opens)

    def means(self) -> dict[str, Tensor]:
        """Return the means so far, on the device; NaN if nothing was added."""
        sums: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        for names, total in self.totals.items():
            for name, value in zip(names, total[1:]):
                sums[name] = sums.get(name, 0) + value
                weights[name] = weights.get(name, 0) + total[0]
        return {name: sums[name] / weights[name] for name in sums}

    def load(self, sums: Mapping[tuple[str, ...], Sequence[float]]) -> None:
        """Continue from these sums, in place, since a recording may write to the tensors."""
        self.reset()
        for names, numbers in sums.items():
            total = torch.tensor(numbers, dtype=torch.float64, device=self.bad.device)
            self.totals.setdefault(names, total).copy_(total)

    def save(self) -> None:
        """Save the sums at the start of an accumulation window."""
        self._saved = {names: total.clone() for names, total in self.totals.items()}

    def restore(self) -> None:
        """Remove what was added since `save`."""
        for names, total in self.totals.items():
            saved = self._saved.get(names)
            total.zero_() if saved is None else total.copy_(saved)

    def reset(self) -> None:
        """Reset the sums to zero."""
        for total in self.totals.values():
            total.zero_()


def account_on_host(
    numbers: list[Tensor], total: Tensor, bad: Tensor, weight: int | Tensor, opens: bool
) -> None:
    """Do the same as `account` for numbers on the CPU, in a few operations instead of a dozen.

    >>> numbers, bad = [torch.tensor(1.0), torch.tensor(0.1)], torch.zeros(())
    >>> sums = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]
    >>> for way, total in zip((account, account_on_host), sums):
    ...     way(numbers, total, bad, 3, True)
    >>> torch.equal(*sums)
    True
    """
    if isinstance(weight, Tensor):
        account(numbers, total, bad, weight, opens)
        return
    loss = numbers[1].item()
    left_out = not math.isfinite(loss)
    if left_out or (opens and bool(bad)):
        bad.fill_(left_out)
    if left_out:
        return
    # NumPy takes a fraction of torch's time for so few numbers.
    sums = total.numpy()
    sums[0] += weight
    sums[1] += weight * loss
    for index, number in enumerate(numbers[2:], start=2):
        sums[index] += weight * number.item()


def account(numbers: list[Tensor], total: Tensor, bad: Tensor, weight: int | Tensor, opens: bool) -> None:
    """Add the numbers to the sums, or set the flag of the window if the loss is not finite."""
    loss = numbers[1]
    # x - x is zero for finite numbers only.
    left_out = loss - loss != 0
    if opens:
        bad.copy_(left_out)
    else:
        torch.maximum(bad, left_out.to(bad.dtype), out=bad)
    # If nothing is wider than float32, the sum widens by itself, without one conversion per number.
    dtype = torch.float32 if all(number.dtype in NARROW for number in numbers) else torch.float64
    row = torch.stack([number.to(dtype).reshape(()) for number in numbers]).masked_fill_(left_out, 0.0)
    if isinstance(weight, Tensor):
        total.addcmul_(row, weight.to(total.device))
    else:
        total.add_(row, alpha=weight)
