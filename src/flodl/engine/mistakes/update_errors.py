"""Explains torch errors that an optimizer raises in an update."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UpdateError

_KINDS = r"dtype|scalar type|device"
_SHAPES = r"size|shape|dimension"


def explained_update(error: BaseException, model: nn.Module, optimizer: Optimizer) -> Exception | None:
    """Return an error that says why an update failed, or None if it is not known.

    An error that is not recognized gets a note about the optimizer.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer.state[model.bias]["momentum_buffer"] = torch.zeros(1, dtype=torch.float64)
    >>> print(explained_update(RuntimeError("expected dtype float"), model, optimizer))
    at 'bias': expected dtype float, in the update by SGD: the parameter is float32 on cpu, and its ...
    """
    if type(error) is not RuntimeError:
        return None
    name = type(optimizer).__name__
    first = str(error).partition("\n")[0].rstrip(".!")
    if re.search(_KINDS, first) and (found := _other_kind(optimizer)):
        parameter, key, value = found
        path = _path_of(parameter, model)
        return UpdateError(
            f"{first}, in the update by {name}: the parameter is {_kind(parameter)}, and its state {key!r} "
            f"in the optimizer is {_kind(value)}. The model was converted or moved after the first update. "
            "Convert it before you create the optimizer, or create the optimizer and the TrainStep again.",
            path=path,
        )
    if re.search(_SHAPES, first) and (found := _other_shape(optimizer)):
        parameter, key, value = found
        return UpdateError(
            f"{first}, in the update by {name}: the parameter has the shape {tuple(parameter.shape)}, and "
            f"its state {key!r} in the optimizer {tuple(value.shape)}. The state of the optimizer belongs to "
            "a different model. Load the one that was saved with this model, or start with a new optimizer.",
            path=_path_of(parameter, model),
        )
    kinds = sorted({_kind(parameter) for group in optimizer.param_groups for parameter in group["params"]})
    error.add_note(f"In the update by {name}; its parameters are {' and '.join(kinds)}.")
    return None


def _path_of(parameter: Tensor, model: nn.Module) -> str:
    return next((path for path, one in model.named_parameters() if one is parameter), "")


def _other_shape(optimizer: Optimizer) -> tuple[Tensor, str, Tensor] | None:
    """Return a parameter whose state does not fit its shape, with the name and value of that state."""
    for parameter, state in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(state, Mapping):
            continue
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or value.is_sparse:
                continue
            # Adafactor has one number for each row or column, with size 1 in the other dimensions.
            sizes = zip(value.shape, parameter.shape)
            if value.dim() != parameter.dim() or any(size not in (1, own) for size, own in sizes):
                return parameter, key, value
    return None


def _other_kind(optimizer: Optimizer) -> tuple[Tensor, str, Tensor] | None:
    """Return a parameter whose state has another dtype or device, with the state and its name."""
    for parameter, state in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(state, Mapping):
            continue
        for key, value in state.items():
            # A step count is a scalar, on the host for most optimizers.
            if not isinstance(value, Tensor) or value.dim() == 0 or not value.is_floating_point():
                continue
            if (value.dtype, value.device) != (parameter.dtype, parameter.device):
                return parameter, key, value
    return None


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} on {tensor.device}".removeprefix("torch.")
