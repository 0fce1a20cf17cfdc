"""Tensors that a step function writes to and that belong to no model: state that nobody saves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .reachable import Reachable, has_attributes, plain_attributes
from .sandbox import MAX_OBJECTS
from .saved_values import SavedTensor


class OutsideTensors:
    """The floating-point tensors and generators that a function reaches outside a model, by variable."""

    def __init__(self, function: Callable[..., Any], model: nn.Module, *, saved: Iterable[Any] = ()) -> None:
        known = Reachable([model, *model.parameters(), *model.buffers(), *saved], most=MAX_OBJECTS)
        # Only these are restored by a sandbox.
        restored = set(map(id, Reachable([function], exclude=known, most=MAX_OBJECTS)))
        self._tensors: list[tuple[str, SavedTensor]] = []
        self._generators: list[tuple[str, Any, Any]] = []
        for name, value in variables_of(function, set()):
            found = Reachable([value], exclude=known, most=MAX_OBJECTS)
            for one in found:
                if (
                    id(one) in restored
                    and isinstance(one, Tensor)
                    and one.is_floating_point()
                    and not one.is_inference()
                ):
                    self._tensors.append((name, SavedTensor(one, (), ())))
                elif (state := generator_state(one)) is not None:
                    self._generators.append((name, one, state))

    def drawn(self) -> list[str]:
        """Return the variables with a generator of random numbers that was drawn from since."""
        changed = [name for name, one, before in self._generators if generator_state(one) != before]
        return list(dict.fromkeys(changed))

    def written(self) -> dict[str, list[Tensor]]:
        """Return the tensors that were written to since, by the name of the variable."""
        found: dict[str, list[Tensor]] = {}
        for name, before in self._tensors:
            now = SavedTensor(before.value, (), ())
            now.grad = before.grad  # only elements are compared
            if before.differs_from(now):
                found.setdefault(name, []).append(before.value)
        return found


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of Python, NumPy or torch; None for anything else."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return str(generator.get_state(legacy=False))
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    return None


def variables_of(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function reads from outside, also those of functions that it calls."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        yield from ((name, value) for name, value in function.keywords.items())
        yield from ((f"argument {index}", value) for index, value in enumerate(function.args))
        function = function.func
    if isinstance(function, MethodType):
        yield from variables_of(function.__func__, seen)
        function = function.__self__
    if not isinstance(function, FunctionType):
        if has_attributes(function):
            yield from ((f"self.{name}", value) for name, value in plain_attributes(function).items())
        return
    names = function.__code__.co_freevars
    found = {n: c.cell_contents for n, c in zip(names, function.__closure__ or ()) if _is_set(c)}
    read = set(function.__code__.co_names)
    found |= {name: value for name, value in function.__globals__.items() if name in read}
    for name, value in found.items():
        if isinstance(value, FunctionType):
            yield from variables_of(value, seen)
        else:
            yield name, value


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the variable is not assigned yet
        return False
