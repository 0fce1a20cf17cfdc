"""The state of an optimizer travels between devices, which keep a learning rate as a number or a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..saving.check_optimizer import with_own_implementation


def load_optimizer_state(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state; learning rates stay numbers or tensors, as they are on this device.

    >>> import torch
    >>> one, other = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr) for lr in (0.5, 0.1))
    >>> one.param_groups[0]["lr"] = torch.tensor(0.25)
    >>> load_optimizer_state(other, one.state_dict())
    >>> other.param_groups[0]["lr"]
    0.25
    """
    before = [group.get("lr") for group in optimizer.param_groups]
    optimizer.load_state_dict(with_own_implementation(saved, optimizer))
    for group, own in zip(optimizer.param_groups, before):
        if isinstance(own, Tensor):
            group["lr"] = own.fill_(float(group["lr"]))
        elif isinstance(group.get("lr"), Tensor):
            group["lr"] = float(group["lr"])
