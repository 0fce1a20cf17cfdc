"""Sums of the loss and of named values, kept on the device, so that a mean costs one read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..device.tensors import NARROW


class Tally:
    """Weighted sums that grow inside the step itself, recorded along with it; what is not finite is left out.

    >>> tally = Tally(torch.device("cpu"))
    >>> for loss, weight in [(2.0, 3), (6.0, 1), (torch.nan, 9)]:
    ...     tally.add(torch.tensor(loss), {}, weight=weight, opens=True)
    >>> tally.means(), tally.bad
    ({'loss': tensor(3., dtype=torch.float64)}, tensor(1.))
    """

    def __init__(self, device: torch.device) -> None:
        # Above zero where a loss since the window opened was not finite.
        self.bad = torch.zeros((), dtype=torch.float32, device=device)
        # By the names that came together; the first number of each is the weight.
        self.totals: dict[tuple[str, ...], Tensor] = {}
        self._noted: dict[tuple[str, ...], Tensor] = {}
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self.account: Callable[..., None] = account_on_host if device.type == "cpu" else account

    def add(self, loss: Tensor, values: Mapping[str, Tensor], *, weight: int | Tensor, opens: bool) -> None:
        """Add one micro-batch, unless its loss is not finite; a weight may be known on the device only."""
        numbers = {name: v for name, v in values.items() if v.numel() == 1 and v.device == loss.device}
        names = ("loss", *numbers)
        total = self.totals.get(names)
        if total is None:
            total = torch.zeros(len(names) + 1, dtype=torch.float64, device=loss.device)
            self.totals[names] = total
        with torch.no_grad():
            self.account([self._one.to(loss.device), loss, *numbers.values()], total, self.bad, weight, opens)

    def means(self) -> dict[str, Tensor]:
        """Give the means so far, on the device; NaN where nothing was counted."""
        sums: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        for names, total in self.totals.items():
            for name, value in zip(names, total[1:]):
                sums[name] = sums.get(name, 0) + value
                weights[name] = weights.get(name, 0) + total[0]
        return {name: sums[name] / weights[name] for name in sums}

    def load(self, sums: Mapping[tuple[str, ...], Sequence[float]]) -> None:
        """Go on from these sums, in the tensors that a recording may write to already."""
        self.reset()
        for names, numbers in sums.items():
            total = torch.tensor(numbers, dtype=torch.float64, device=self.bad.device)
            self.totals.setdefault(names, total).copy_(total)

    def note(self) -> None:
        """Note the sums where a window of several micro-batches opens."""
        self._noted = {names: total.clone() for names, total in self.totals.items()}

    def go_back(self) -> None:
        """Take back what was added since `note`."""
        for names, total in self.totals.items():
            noted = self._noted.get(names)
            total.zero_() if noted is None else total.copy_(noted)

    def reset(self) -> None:
        """Start again from zero."""
        for total in self.totals.values():
            total.zero_()


def account_on_host(
    numbers: list[Tensor], total: Tensor, bad: Tensor, weight: int | Tensor, opens: bool
) -> None:
    """Do the same where the numbers lie in the host's own memory, in a few operations instead of a dozen.

    >>> numbers, bad = [torch.tensor(1.0), torch.tensor(0.1)], torch.zeros(())
    >>> sums = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]
    >>> for way, total in zip((account, account_on_host), sums):
    ...     way(numbers, total, bad, 3, True)
    >>> torch.equal(*sums)
    True
    """
    if isinstance(weight, Tensor) or any(number.is_complex() for number in numbers):
        account(numbers, total, bad, weight, opens)
        return
    row = [1.0, *(number.item() for number in numbers[1:])]
    left_out = not math.isfinite(row[1])
    if opens or left_out:
        bad.fill_(left_out)
    if not left_out:
        total.add_(torch.tensor(row, dtype=total.dtype, device=total.device), alpha=weight)


def account(numbers: list[Tensor], total: Tensor, bad: Tensor, weight: int | Tensor, opens: bool) -> None:
    """Add the numbers to the sums unless the loss is not finite, which sets the flag for the window."""
    loss = numbers[1]
    # Only what is not finite differs from zero when it is taken from itself.
    left_out = loss - loss != 0
    if opens:
        bad.copy_(left_out)
    else:
        torch.maximum(bad, left_out.to(bad.dtype), out=bad)
    # Where nothing is wider than float32, the sum widens by itself, without a conversion for each number.
    dtype = torch.float32 if all(number.dtype in NARROW for number in numbers) else torch.float64
    row = torch.stack([number.to(dtype).reshape(()) for number in numbers]).masked_fill_(left_out, 0.0)
    if isinstance(weight, Tensor):
        total.addcmul_(row, weight.to(total.device))
    else:
        total.add_(row, alpha=weight)
