"""Autograd history that outlives its step.

While a tensor of an earlier step is held with its history, torch adds up gradients where that step did, on
its stream; a recording runs on a stream of its own and breaks.
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


def cut_history(model: nn.Module, lasting: Collection[Tensor] = ()) -> None:
    """Detach what the modules of a model keep of earlier steps; the values stay as they are.

    Those that are `lasting`, since they stay from step to step, keep their history.

    >>> model = nn.Linear(2, 1)
    >>> model.last = [model(Tensor([[1.0, 2.0]]))]
    >>> cut_history(model), model.last[0].requires_grad
    (None, False)
    """
    for module in model.modules():
        if hasattr(type(module), "has_state"):
            # A graph also asks modules of others, of whom one may not be in the state to answer.
            with suppress(Exception):
                module.detach_state()  # type: ignore[operator]
        kept = vars(module)
        for name in kept.keys() - _REGISTERED:
            kept[name] = without_history(kept[name], lasting)


def attribute_path(tensor: Tensor, model: nn.Module) -> str:
    """Name the attribute of a module that is a tensor; nothing where it lies deeper.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> model[0].turned = model[0].weight.t()
    >>> attribute_path(model[0].turned, model)
    '0.turned'
    """
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if value is tensor:
                return f"{path}.{name}".lstrip(".")
    return ""


def has_live_history(parameters: Iterable[Tensor]) -> bool:
    """Say whether somebody still holds a tensor that was computed from one of the parameters.

    >>> model = nn.Linear(2, 1)
    >>> has_live_history(model.parameters())
    False
    >>> loss = model(Tensor([[1.0, 2.0]])).sum()
    >>> has_live_history(model.parameters())
    True
    """
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    # The place where a gradient is added up lives as long as a history leads to it, with what is noted there.
    for parameter in learning:
        _notes_of(parameter)[_MARK] = True
    return any(_MARK in _notes_of(parameter) for parameter in learning)


def _notes_of(parameter: Tensor) -> dict[str, Any]:
    notes: Any = get_gradient_edge(parameter).node.metadata
    return notes  # type: ignore[no-any-return]


def without_history(value: Any, lasting: Collection[Tensor] = (), depth: int = 0) -> Any:
    """Give a value without its history; containers and dataclasses stay the objects that they are."""
    if isinstance(value, Tensor):
        keeps = value.grad_fn is None or any(value is one for one in lasting)
        return value if keeps else _detached(value)
    if depth > _MAX_DEPTH:  # as in a list that holds itself
        return value
    if isinstance(value, list | deque | dict):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if (cut := without_history(item, lasting, depth + 1)) is not item:
                value[key] = cut
    elif isinstance(value, tuple):
        items = [without_history(item, lasting, depth + 1) for item in value]
        if any(cut is not item for cut, item in zip(items, value)):
            return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    elif is_dataclass(value) and not isinstance(value, type):
        for name, item in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            if (cut := without_history(item, lasting, depth + 1)) is not item:
                object.__setattr__(value, name, cut)  # past what a frozen one forbids
    return value


def _detached(value: Tensor) -> Tensor:
    """Give a tensor without its history, with the gradient that it was asked to keep."""
    cut = value.detach()
    if value.retains_grad:
        cut.grad = value.grad
    return cut
