"""Finds and cuts autograd history that outlives its step.

While a tensor of an earlier step keeps its history alive, torch accumulates gradients on the stream of that
step. A recording runs on another stream and breaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

_REGISTERED = {"_parameters", "_buffers", "_modules"}
_MARK = "flodl.history"
_MAX_DEPTH = 8


def cut_history(model: nn.Module, persistent: Collection[Tensor] = ()) -> None:
    """Detach the tensors of earlier steps that the modules of a model keep; their values do not change.

    Tensors in `persistent`, which stay the same from step to step, keep their history.

    >>> model = nn.Linear(2, 1)
    >>> model.last = [model(Tensor([[1.0, 2.0]]))]
    >>> cut_history(model), model.last[0].requires_grad
    (None, False)
    """
    for module in model.modules():
        if hasattr(type(module), "has_state"):
            # A graph also calls modules of the user, which may raise.
            with suppress(Exception):
                module.detach_state()  # type: ignore[operator]
        attributes = vars(module)
        for name in attributes.keys() - _REGISTERED:
            attributes[name] = without_history(attributes[name], persistent)


def attribute_path(tensor: Tensor, model: nn.Module) -> str:
    """Return the path of the module attribute that is a tensor; empty if it is nested deeper.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> model[0].transposed = model[0].weight.t()
    >>> attribute_path(model[0].transposed, model)
    '0.transposed'
    """
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if value is tensor:
                return f"{path}.{name}".lstrip(".")
    return ""


def has_live_history(parameters: Iterable[Tensor]) -> bool:
    """Return whether a tensor computed from one of the parameters is still alive.

    >>> model = nn.Linear(2, 1)
    >>> has_live_history(model.parameters())
    False
    >>> loss = model(Tensor([[1.0, 2.0]])).sum()
    >>> has_live_history(model.parameters())
    True
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    # The gradient accumulator and its metadata live as long as a history refers to it.
    for parameter in trainable:
        _accumulator_metadata(parameter)[_MARK] = True
    return any(_MARK in _accumulator_metadata(parameter) for parameter in trainable)


def _accumulator_metadata(parameter: Tensor) -> dict[str, Any]:
    metadata: Any = get_gradient_edge(parameter).node.metadata
    return metadata  # type: ignore[no-any-return]


def without_history(value: Any, persistent: Collection[Tensor] = (), depth: int = 0) -> Any:
    """Return a value without its history; lists, dicts and dataclasses are changed in place."""
    if isinstance(value, Tensor):
        keeps = value.grad_fn is None or any(value is one for one in persistent)
        return value if keeps else _detached(value)
    if depth > _MAX_DEPTH:  # such as a list that contains itself
        return value
    if isinstance(value, list | deque | dict):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if (cut := without_history(item, persistent, depth + 1)) is not item:
                value[key] = cut
    elif isinstance(value, tuple):
        items = [without_history(item, persistent, depth + 1) for item in value]
        if any(cut is not item for cut, item in zip(items, value)):
            return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    elif is_dataclass(value) and not isinstance(value, type):
        for name, item in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            if (cut := without_history(item, persistent, depth + 1)) is not item:
                object.__setattr__(value, name, cut)  # works for a frozen one too
    return value


def _detached(value: Tensor) -> Tensor:
    """Return a tensor without its history, with its retained gradient."""
    cut = value.detach()
    if value.retains_grad:
        cut.grad = value.grad
    return cut
