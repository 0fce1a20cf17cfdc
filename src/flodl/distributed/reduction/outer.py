"""Outer optimizers: what is added to the consensus, given the mean progress of the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class OuterOptimizer(Protocol):
    """Turns mean progress into an update. It is elementwise, so it can work on parts of a vector.

    Every rank computes the same update. Multiplications and additions are separate operations, which round in
    the same way on every device; a fused one would not.
    """

    @property
    def has_momentum(self) -> bool:
        """True if it keeps one number per parameter from window to window."""

    def update(self, progress: Tensor, momentum: Tensor | None) -> None:
        """Replace `progress` by what is added to the consensus, and update `momentum` in place."""


@dataclass(frozen=True)
class Mean:
    """The new version is the weighted mean of the ranks."""

    has_momentum = False

    def update(self, progress: Tensor, momentum: Tensor | None) -> None:
        pass


@dataclass(frozen=True)
class SlowMomentum:
    """Momentum over windows (SlowMo): m ← momentum · m + progress; the update is lr · m."""

    momentum: float = 0.5
    lr: float = 1.0
    has_momentum = True

    def update(self, progress: Tensor, momentum: Tensor | None) -> None:
        assert momentum is not None
        momentum.mul_(self.momentum).add_(progress)
        progress.copy_(momentum).mul_(self.lr)


@dataclass(frozen=True)
class Nesterov:
    """Nesterov momentum over windows (DiLoCo), as `torch.optim.SGD` with the gradient −progress."""

    lr: float = 0.7
    momentum: float = 0.9
    has_momentum = True

    def update(self, progress: Tensor, momentum: Tensor | None) -> None:
        assert momentum is not None
        momentum.mul_(self.momentum).add_(progress)
        progress.add_(momentum * self.momentum).mul_(self.lr)
