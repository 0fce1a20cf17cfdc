"""Build the device and the optimizer of a trainer from its arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.core.device import parse_device
from flodl.optim import groups


def select_device(device: str | torch.device) -> torch.device:
    """Return the device to train on; "auto" is a GPU if there is one."""
    if device == "auto":
        return (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
    return parse_device(
        device,
        error=TrainError,
        advice="Use 'auto', 'cpu' or 'cuda:0'.",
        advice_without_cuda="Use 'auto' or 'cpu'.",
    )


def build_optimizer(optimizer: Any, model: nn.Module) -> Optimizer:
    """Return the optimizer, or the one that a function builds from the parameters of the model."""
    if next(model.parameters(), None) is None:
        raise TrainError(f"the {type(model).__name__} has no parameters, so there is nothing to train.")
    built = optimizer if isinstance(optimizer, Optimizer) else None
    if isinstance(optimizer, list | tuple):
        raise TrainError(
            f"optimizer is a {type(optimizer).__name__} of {len(optimizer)}, and a trainer has one. "
            "Pass one optimizer, or write a loop with one TrainStep for each optimizer."
        )
    if built is None and callable(optimizer):
        built = optimizer(groups(model, {}))
    if not isinstance(built, Optimizer):
        raise TrainError(
            f"optimizer={optimizer!r} does not return a torch optimizer. "
            "Write optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)."
        )
    return built
