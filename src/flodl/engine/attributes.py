"""What modules keep in plain attributes: counters, hidden states, generators of their own."""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# What `torch.nn.Module` itself keeps there; parameters and buffers are put back elsewhere.
_TORCHS_OWN = frozenset(vars(nn.Module()))


class Attributes:
    """The plain attributes of all modules of a model, to be put back after they were run once more.

    What an attribute refers to is put back, and the contents of tensors, lists, dictionaries and sets and the
    states of random generators among them. What objects of other kinds keep inside is not known.

    >>> model = nn.Linear(2, 1)
    >>> model.calls, model.seen, model.hidden = 1, ["a"], torch.ones(2)
    >>> kept = Attributes(model)
    >>> model.calls, model.new = 2, True
    >>> model.seen.append("b"), model.hidden.zero_()
    (None, tensor([0., 0.]))
    >>> kept.restore()
    >>> model.calls, model.seen, model.hidden, hasattr(model, "new")
    (1, ['a'], tensor([1., 1.]), False)
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (module, {name: (value, _state_of(value)) for name, value in _plain(module).items()})
            for module in model.modules()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was."""
        for module, kept in self._kept:
            for name in _plain(module).keys() - kept.keys():
                del module.__dict__[name]
            for name, (value, state) in kept.items():
                module.__dict__[name] = value
                _put_back(value, state)


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}


def _state_of(value: Any) -> Any:
    """Give a copy of what may change inside a value; None where nothing is known to."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else (value._version, value.detach().clone())
    if isinstance(value, torch.Generator):
        return value.get_state() if value.device.type == "cpu" else None
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    if type(value) in (list, deque):
        return [(item, _state_of(item)) for item in value]
    if type(value) is dict:
        return {key: (item, _state_of(item)) for key, item in value.items()}
    return set(value) if type(value) is set else None


def _put_back(value: Any, state: Any) -> None:
    if state is None:
        return
    if isinstance(value, Tensor):
        version, copied = state
        if value._version != version:
            value.detach().copy_(copied)
    elif isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, dict):
        value.clear()
        value.update({key: item for key, (item, _) in state.items()})
        for item, inner in state.values():
            _put_back(item, inner)
    elif isinstance(value, set):
        value.clear()
        value.update(state)
    else:
        value.clear()
        value.extend(item for item, _ in state)
        for item, inner in state:
            _put_back(item, inner)
