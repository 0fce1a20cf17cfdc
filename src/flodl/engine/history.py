"""Autograd history that outlives its step.

While a tensor of an earlier step is held with its history, torch adds up gradients where that step did, on
its stream; a recording runs on a stream of its own and breaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from .batch import leaves_of, mapped

_TORCHS_OWN = {"_parameters", "_buffers", "_modules"}
_MARK = "flodl.history"
_DEEP = 8


def cut_history(model: nn.Module) -> None:
    """Detach what the modules of a model keep of earlier steps; the values stay as they are.

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
        for name in kept.keys() - _TORCHS_OWN:
            kept[name] = _cut(kept[name], depth=0)


def is_held(parameters: Iterable[Tensor]) -> bool:
    """Say whether somebody still holds a tensor that was computed from one of the parameters.

    >>> model = nn.Linear(2, 1)
    >>> is_held(model.parameters())
    False
    >>> loss = model(Tensor([[1.0, 2.0]])).sum()
    >>> is_held(model.parameters())
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


def _cut(value: Any, depth: int) -> Any:
    """Give a value without its history; lists and dicts stay the objects that they are."""
    if isinstance(value, Tensor):
        return value if value.grad_fn is None else value.detach()
    if depth > _DEEP:  # as in a list that holds itself
        return value
    if isinstance(value, list):
        value[:] = [_cut(item, depth + 1) for item in value]
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if (cut := _cut(item, depth + 1)) is not item:
                value[key] = cut
    elif isinstance(value, tuple | deque) or is_dataclass(value):
        has_history = any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in leaves_of(value))
        return mapped(lambda leaf: _cut(leaf, depth + 1), value) if has_history else value
    return value
