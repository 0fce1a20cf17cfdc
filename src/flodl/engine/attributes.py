"""What modules keep in plain attributes: counters, hidden states, generators of their own."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .batch import leaves_of
from .history import DEEP, without_history

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
            (module, {name: _Kept(value) for name, value in _plain(module).items()})
            for module in model.modules()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was."""
        for module, kept in self._kept:
            for name in _plain(module).keys() - kept.keys():
                del module.__dict__[name]
            for name, one in kept.items():
                module.__dict__[name] = one.put_back()

    def with_history(self) -> list[Tensor]:
        """Give the tensors that were computed from others that learn."""
        found = (tensor for _, kept in self._kept for one in kept.values() for tensor in one.tensors())
        return list({id(tensor): tensor for tensor in found if tensor.grad_fn is not None}.values())

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        """Let go of all histories but of those tensors; what is put back later has none either."""
        for _, kept in self._kept:
            for one in kept.values():
                one.cut_history(lasting)


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}


class _Kept:
    """A value, what it held, and a copy of what may change inside it, where that is known."""

    def __init__(self, value: Any, depth: int = 0) -> None:
        self.value = value
        self._items: dict[Any, _Kept] | None = None
        self._state: Any = None
        if type(value) in (list, deque, dict):
            if depth <= DEEP:  # deeper is, say, a list that holds itself
                pairs = value.items() if type(value) is dict else enumerate(value)
                self._items = {key: _Kept(item, depth + 1) for key, item in pairs}
        elif type(value) is set:
            self._state = set(value)
        elif isinstance(value, Tensor):
            self._state = None if value.is_inference() else (value._version, value.detach().clone())
        elif isinstance(value, torch.Generator):
            self._state = value.get_state() if value.device.type == "cpu" else None
        elif isinstance(value, random.Random):
            self._state = value.getstate()
        elif isinstance(value, np.random.Generator):
            self._state = copy.deepcopy(value.bit_generator.state)

    def put_back(self) -> Any:
        """Give the value, as it was."""
        value, state, items = self.value, self._state, self._items
        if items is not None:
            was = {key: item.put_back() for key, item in items.items()}
            value.clear()
            value.update(was) if isinstance(value, dict) else value.extend(was.values())
        elif state is None:
            pass
        elif isinstance(value, set):
            value.clear()
            value.update(state)
        elif isinstance(value, Tensor):
            version, copied = state
            if value._version != version:
                value.detach().copy_(copied)
        elif isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, random.Random):
            value.setstate(state)
        else:
            value.bit_generator.state = state
        return value

    def tensors(self) -> Iterator[Tensor]:
        """Give all tensors within."""
        if self._items is not None:
            for item in self._items.values():
                yield from item.tensors()
        elif isinstance(self.value, Tensor | tuple | Mapping) or is_dataclass(self.value):
            yield from (leaf for leaf in leaves_of(self.value) if isinstance(leaf, Tensor))

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        """Let go of histories, also of what the value holds now."""
        self.value = without_history(self.value, lasting)
        for item in (self._items or {}).values():
            item.cut_history(lasting)
