"""Averages gradients over ranks between backward and clipping, in a layout that is the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from flodl.core import StepError

from ..program.finite import FiniteCheck

# Averages tensors over ranks in place, weighted by the number of samples of each rank. A rank with weight 0
# contributes nothing. The tensors have the same shapes in the same order on all ranks.
ReduceGradients = Callable[[Sequence[Tensor], float], None]


class GradientReduction:
    """Calls a reducer once per update.

    What decides about the update is reduced with the gradients, so that all ranks decide alike: which
    parameters have a gradient on some rank, and whether a loss was not finite on some rank.

    >>> model = nn.Linear(2, 1)
    >>> bad = torch.zeros(())
    >>> reduction = GradientReduction(lambda gradients, weight: None, model, bad)
    >>> model.weight.grad = torch.ones(1, 2)
    >>> reduction.run([*model.parameters()], correction=0.5, samples=4)
    >>> model.weight.grad, model.bias.grad
    (tensor([[0.5000, 0.5000]]), None)
    """

    def __init__(self, reduce: ReduceGradients, model: nn.Module, bad: Tensor) -> None:
        self._reduce = reduce
        self._model = model
        self._bad = bad
        # The updates for which the loss or the gradients of this rank were not finite before the average.
        self.num_bad_here = torch.zeros((), dtype=torch.float64, device=bad.device)

    @torch.no_grad()
    def run(self, parameters: Sequence[Tensor], *, correction: float, samples: float) -> None:
        """Multiply the gradients by `correction`, then average them over ranks.

        A parameter without a gradient contributes zeros. If no rank has a gradient for it, it gets none, as
        in one process; to find that out, the host waits for the device.
        """
        trained = [p for p in parameters if p.requires_grad or p.grad is not None]
        self._refuse_sparse(trained)
        if samples == 0:
            # A mean over no samples is NaN.
            self._bad.zero_()
            for parameter in trained:
                parameter.grad = None
        elif correction != 1.0:
            for parameter in trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(correction)
        missing = [index for index, parameter in enumerate(trained) if parameter.grad is None]
        for index in missing:
            trained[index].grad = torch.zeros_like(trained[index])
        flags = torch.ones(len(trained) + 1, dtype=torch.float32, device=self._bad.device)
        if missing:
            flags[missing] = 0.0
        flags[-1] = self._bad
        self._count_bad_here(trained)
        self._reduce([*(p.grad for p in trained if p.grad is not None), flags], samples)
        self._bad.copy_(flags[-1] != 0)
        if missing:
            for index, is_used in zip(missing, flags[missing].tolist()):
                if not is_used:
                    trained[index].grad = None

    def _count_bad_here(self, parameters: Sequence[Tensor]) -> None:
        """Count the update if this rank's part of it is not finite: after averaging, no rank's update is."""
        found = self._bad.clone()
        FiniteCheck(found)([p.grad for p in parameters if p.grad is not None])
        self.num_bad_here.add_(found != 0)

    def _refuse_sparse(self, parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                name = next((name for name, one in self._model.named_parameters() if one is parameter), "")
                raise StepError(
                    "this parameter has a sparse gradient, and only dense gradients are averaged over ranks. "
                    "Create its embedding with sparse=False.",
                    path=name,
                )
