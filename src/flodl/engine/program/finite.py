"""Checks gradients for NaN and infinity, and sets a flag on their device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# On the CPU, torch checks elements one by one; from this size on, a sum is faster.
_LARGE = 4096


class FiniteCheck:
    """Sets `bad` to one if an element is not finite, without a host sync.

    >>> bad = torch.zeros(())
    >>> FiniteCheck(bad)([torch.ones(3), torch.tensor([1.0, torch.inf])])
    >>> bad
    tensor(1.)
    """

    def __init__(self, bad: Tensor) -> None:
        self.bad = bad
        self._one = torch.ones_like(bad)

    def __call__(self, grads: Sequence[Tensor]) -> None:
        """Check gradients; those that are sparse need not be coalesced."""
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for grad in grads:
            if grad.requires_grad:
                grad = grad.detach()
            if type(grad) is not Tensor or grad.layout is not torch.strided:
                self._check_one(grad)
                continue
            if grad.is_complex():
                grad = torch.view_as_real(grad)
            if not grad.is_cpu or grad.numel() < _LARGE:
                by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
            elif not math.isfinite(grad.sum().item()):
                # The sum of finite numbers may overflow, too.
                self._check_one(grad)
        for (device, _), group in by_kind.items():
            self._check_group(group, device)

    def _check_group(self, group: list[Tensor], device: torch.device) -> None:
        if device == self.bad.device:
            torch._amp_foreach_non_finite_check_and_unscale_(group, self.bad, self._one)
            return
        found = torch.zeros_like(self.bad, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, torch.ones_like(found))
        self._flag(found)

    def _check_one(self, grad: Tensor) -> None:
        values = grad._values() if grad.is_sparse else grad
        self._flag(values.isfinite().all().logical_not())

    def _flag(self, found: Tensor) -> None:
        torch.maximum(self.bad, found.to(self.bad), out=self.bad)
