"""Generators, modules and optimizers that functions use outside the model: state that may be in no save."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import NotRestorable
from .outside import generator_state, variables_of
from .reachable import Reachable

# A search that takes longer is abandoned: it would delay the start of a run.
MOST_OBJECTS = 20_000


@dataclass
class OutsideVariable:
    """What one variable of an owner reaches, as it was when the search began."""

    owner: str
    name: str
    kind: str
    generators: list[tuple[Any, Any]] = field(default_factory=list)
    tensors: list[tuple[Tensor, tuple[int, int]]] = field(default_factory=list)
    optimizers: list[tuple[Optimizer, list[tuple[int, int]]]] = field(default_factory=list)

    @property
    def is_drawn(self) -> bool:
        """Whether random numbers were drawn from one of its generators since."""
        return any(generator_state(one) != before for one, before in self.generators)

    @property
    def is_stepped(self) -> bool:
        """Whether one of its optimizers has state that changed since."""
        return any(one.state and _versions_of(one) != before for one, before in self.optimizers)

    @property
    def written(self) -> list[Tensor]:
        """The parameters and buffers of its modules that were written to since."""
        return [tensor for tensor, before in self.tensors if _version(tensor) != before]


class OutsideObjects:
    """The variables of functions and objects that reach generators, modules or optimizers.

    What `saved` reaches is left out. A variable that reaches too many objects is, too.

    >>> rng = random.Random(0)
    >>> found = OutsideObjects([("augment", lambda batch: batch * rng.random())])
    >>> _ = rng.random()
    >>> [(one.owner, one.name) for one in found.variables if one.is_drawn]
    [('augment', 'rng')]
    """

    def __init__(self, owners: Iterable[tuple[str, Any]], *, saved: Iterable[Any] = ()) -> None:
        self.variables: list[OutsideVariable] = []
        seen = [*_GLOBAL_GENERATORS, *Reachable(saved)]
        for owner, root in owners:
            for name, value in variables_of(root, set()):
                try:
                    found = list(Reachable([value], exclude=seen, most=MOST_OBJECTS))
                except NotRestorable:
                    continue
                seen += found
                self._add(OutsideVariable(owner, name, type(value).__name__), found)

    def _add(self, variable: OutsideVariable, found: Iterable[Any]) -> None:
        for one in found:
            if isinstance(one, nn.Module):
                held = (*one._parameters.values(), *one._buffers.values())
                known = [each for each in held if each is not None and not each.is_inference()]
                variable.tensors += [(each, _version(each)) for each in known]
            elif isinstance(one, Optimizer):
                variable.optimizers.append((one, _versions_of(one)))
            elif (state := generator_state(one)) is not None:
                variable.generators.append((one, state))
        if variable.tensors or variable.optimizers or variable.generators:
            self.variables.append(variable)


# Their states are in every save.
_GLOBAL_GENERATORS = (torch.default_generator, random._inst, np.random.mtrand._rand)


def _version(tensor: Tensor) -> tuple[int, int]:
    return tensor._version, id(tensor) if tensor.layout is not torch.strided else tensor.data_ptr()


def _versions_of(optimizer: Optimizer) -> list[tuple[int, int]]:
    states = [one.values() for one in optimizer.state.values() if isinstance(one, dict)]
    return [_version(each) for one in states for each in one if isinstance(each, Tensor)]
