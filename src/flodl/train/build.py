"""Build the device and the optimizer of a trainer from its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.core.device import parse_device
from flodl.core.formats import a_type
from flodl.optim import groups
from flodl.optim.misspelled_options import misspelled_option
from flodl.optim.wrapped_optimizers import uninitialized_text, wrapper_text

# The largest float32 is 3.4e38.
_LARGEST_RATE = 1e38


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


def build_optimizer(optimizer: Any, model: nn.Module, *, saves: bool = False) -> Optimizer:
    """Return the optimizer, or the one that a function builds from the parameters of the model.

    With `saves`, it has to have a state_dict that works.
    """
    if next(model.parameters(), None) is None:
        raise TrainError(f"the {type(model).__name__} has no parameters, so there is nothing to train.")
    built = optimizer if isinstance(optimizer, Optimizer) else None
    if isinstance(optimizer, list | tuple):
        raise TrainError(
            f"optimizer is {a_type(optimizer)} of {len(optimizer)}, and a trainer has one. "
            "Pass one optimizer, or write a loop with one TrainStep for each optimizer."
        )
    if built is None and callable(optimizer) and not wrapper_text(optimizer):
        built = _call_factory(optimizer, groups(model, {}))
    if wrapper := wrapper_text(optimizer if built is None else built):
        raise TrainError(wrapper)
    if not isinstance(built, Optimizer):
        raise TrainError(
            f"optimizer={optimizer!r} does not return a torch optimizer. "
            "Write optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)."
        )
    if uninitialized := uninitialized_text(built, saves=saves):
        raise TrainError(uninitialized)
    _check_rates(built)
    if misspelled := misspelled_option(built):
        raise TrainError(misspelled)
    return built


def _call_factory(factory: Callable[..., Any], parameters: list[dict[str, Any]]) -> Any:
    try:
        return factory(parameters)
    except TypeError as error:
        inner = error.__traceback__
        if inner is None or inner.tb_next is not None:
            raise  # it comes from inside the function
        raise TrainError(
            "optimizer is a function that cannot be called with one argument, the parameter groups of the "
            f"model: {error}. Write optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3), or pass an "
            "optimizer."
        ) from None
    except ValueError as error:
        raise TrainError(f"the optimizer cannot be built: {error}.") from error


def _check_rates(optimizer: Optimizer) -> None:
    """Raise for a learning rate that is not usable."""
    for index, group in enumerate(optimizer.param_groups):
        rate = group.get("lr")
        if not isinstance(rate, int | float | Tensor) or (isinstance(rate, Tensor) and rate.numel() != 1):
            continue
        if not 0.0 <= float(rate) <= _LARGEST_RATE:
            raise TrainError(
                f"the learning rate of group {index} of the optimizer is {float(rate)}. Use a number "
                "between 0 and 1e38; usual ones are between 1e-5 and 1."
            )
