"""What a trainer is made of, from what the user gave."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.core.device import parse_device
from flodl.optim import groups

if TYPE_CHECKING:
    from .run import Run


def chosen_device(wanted: str | torch.device) -> torch.device:
    """Give the device to train on; "auto" is a GPU where there is one."""
    if wanted == "auto":
        return (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
    return parse_device(
        wanted,
        error=TrainError,
        advice="Use 'auto', 'cpu' or 'cuda:0'.",
        advice_without_cuda="Use 'auto' or 'cpu'.",
    )


def made_optimizer(given: Any, model: nn.Module) -> Optimizer:
    """Give the optimizer, made from the parameters of the model where a function was given."""
    if next(model.parameters(), None) is None:
        raise TrainError(f"the {type(model).__name__} has no parameters, so there is nothing to train.")
    made = given if isinstance(given, Optimizer) else None
    if isinstance(given, list | tuple):
        raise TrainError(
            f"optimizer is a {type(given).__name__} of {len(given)}, and a trainer has one. "
            "Give one optimizer, or write a loop with one TrainStep for each optimizer."
        )
    if made is None and callable(given):
        made = given(groups(model, {}))
    if not isinstance(made, Optimizer):
        raise TrainError(
            f"optimizer={given!r} gives no torch optimizer. "
            "Write optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)."
        )
    return made


def described(run: Run, epochs: int) -> dict[str, Any]:
    """Give the settings of a run as plain data."""
    return {"epochs": epochs, **settings_of(run)}


def settings_of(run: Run) -> dict[str, Any]:
    """Give the settings that a resumed run is compared by."""
    loader = run.feeding.training
    return {
        "batch_size": None if loader is None else loader.batch_size,
        "device": str(run.device),
        "optimizer": type(run.optimizer).__name__,
        "schedule": None if run.schedule is None else without_addresses(repr(run.schedule)),
        **asdict(run.train_step.settings),
        **asdict(run.settings),
    }


def without_addresses(words: str) -> str:
    """Leave out where things lie in memory, which is elsewhere in every process.

    >>> without_addresses("<function rate at 0x7f21491dd940>")
    '<function rate>'
    """
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", words)
