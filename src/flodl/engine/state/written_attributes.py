"""Attributes of modules that hold other tensors after a step than before it, such as a hidden state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..batch.tree import map_tensors
from .plain_tensors import modules_of_user

# Longer containers are data, not the state of a recurrent module.
MAX_ITEMS = 64


@dataclass(frozen=True)
class WrittenAttribute:
    """An attribute of a module, with a copy of the tensors that a step stored there."""

    path: str
    module: nn.Module
    name: str
    value: Any

    def assign(self) -> None:
        """Store another copy of the tensors in the module."""
        self.module.__dict__[self.name] = _copied(self.value)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the attribute."""
        return list(_tensors_in(self.value))


class WatchedAttributes:
    """The attributes of the modules that the user wrote, as they are before a step.

    >>> class Recurrent(nn.Module):
    ...     __module__ = "mine"
    ...
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear, self.h = nn.Linear(2, 2), None
    >>> model = Recurrent()
    >>> watched = WatchedAttributes(model)
    >>> model.h = model.linear.weight.detach(), model.linear.bias.detach()
    >>> [one.path for one in watched.written()]
    ['h']
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {(path, name): _versions(value) for path, _, name, value in _attributes_of(model)}

    def written(self) -> list[WrittenAttribute]:
        """Return the attributes that hold tensors now, and others or none before."""
        return [
            WrittenAttribute(f"{path}.{name}" if path else name, module, name, _copied(value))
            for path, module, name, value in _attributes_of(self._model)
            if (now := _versions(value)) and now != self._before.get((path, name))
        ]


def _attributes_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    for path, module in modules_of_user(model):
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield path, module, name, value


def _versions(value: Any) -> list[tuple[int, int]]:
    """Return which tensors a value holds, and how often they were written to."""
    return [(id(one), one._version) for one in _tensors_in(value)]


def _tensors_in(value: Any, depth: int = 2) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if not value.is_inference():
            yield value
    elif depth and type(value) in (tuple, list, dict, deque) and len(value) <= MAX_ITEMS:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one, depth - 1)


def _copied(value: Any) -> Any:
    return map_tensors(lambda one: one.detach().clone() if isinstance(one, Tensor) else one, value)
