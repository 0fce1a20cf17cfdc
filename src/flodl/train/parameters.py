"""Notices parameters that the model got after its optimizer was built, and that nothing would train."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import TrainError


class KnownParameters:
    """The parameters of a model that its optimizer, or the user's choice, is known to account for.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> known, optimizer = KnownParameters(model), torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model.weight = nn.Parameter(torch.zeros(1, 2))
    >>> known.check(model, optimizer)
    Traceback (most recent call last):
    flodl.core.errors.TrainError: at 'weight': this parameter was added or replaced after ...
    """

    def __init__(self, model: nn.Module) -> None:
        # The tensors themselves: the id of a tensor that was freed may be taken by another.
        self._known = set(model.parameters())

    def check(self, model: nn.Module, optimizer: Optimizer, *, averaged: bool = False) -> None:
        """Raise if a parameter was added or replaced and is neither frozen nor in the optimizer.

        If the weights are averaged, the average does not have it either.
        """
        new = {name: one for name, one in model.named_parameters() if one not in self._known}
        if not new:
            return
        trained: set[Tensor] = {one for group in optimizer.param_groups for one in group["params"]}
        for name, parameter in new.items():
            if parameter not in trained and parameter.requires_grad:
                raise TrainError(
                    "this parameter was added or replaced after the optimizer was built, so nothing would "
                    "train it. Write the values into the existing one (with torch.no_grad(): "
                    "parameter.copy_(…)), pass the new one to trainer.optimizer.add_param_group, or create a "
                    "new Trainer.",
                    path=name,
                )
            if averaged:
                raise TrainError(
                    "this parameter was added or replaced after the average of the weights (ema) was "
                    "started, which does not contain it. Create a new Trainer.",
                    path=name,
                )
        self._known.update(new.values())
