"""What an optimizer holds, in a form that tells whether something has changed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class OptimizerContents:
    """The parameters of each group, and which tensors the state consists of.

    A copy of the state would take twice the memory of the weights, so tensors are compared by identity, by
    the number of writes, and by their norms, because writes to `.data` are not counted.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> before = OptimizerContents.of(optimizer)
    >>> before.has_same_state(OptimizerContents.of(optimizer))
    True
    >>> optimizer.state[weight]["momentum_buffer"].zero_()
    tensor([0., 0.])
    >>> before.has_same_state(OptimizerContents.of(optimizer))
    False
    """

    groups: tuple[tuple[Tensor, ...], ...]
    # Kept alive, so that no other tensor takes the place of one in memory.
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]
    norms: str
    # The paths of the tensors and all that is not a tensor.
    others: tuple[str, ...]

    @classmethod
    def of(cls, optimizer: Optimizer) -> OptimizerContents:
        """Return what an optimizer holds now."""
        order = {id(one): at for at, one in enumerate(_parameters(optimizer))}
        state = {order.get(id(key), id(key)): value for key, value in optimizer.state.items()}
        leaves = [*_leaves("", state)]
        tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
        return cls(
            tuple(tuple(group["params"]) for group in optimizer.param_groups),
            tuple(tensors),
            tuple(0 if one.is_inference() else one._version for one in tensors),
            repr(_norms(tensors)),
            tuple(path if isinstance(leaf, Tensor) else f"{path} {leaf!r}" for path, leaf in leaves),
        )

    def has_same_parameters(self, now: OptimizerContents) -> bool:
        """Return whether the groups have the same parameters, in the same order."""
        return [[*map(id, group)] for group in self.groups] == [[*map(id, group)] for group in now.groups]

    def has_same_state(self, now: OptimizerContents) -> bool:
        """Return whether nothing has written to the state, or replaced a part of it."""
        return (
            [*map(id, self.tensors)] == [*map(id, now.tensors)]
            and self.versions == now.versions
            and self.norms == now.norms
            and self.others == now.others
        )


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}.{index}", item)
    elif value is None or isinstance(value, Tensor | bool | int | float | str):
        yield path, value
    else:
        yield path, type(value).__name__


@torch.no_grad()
def _norms(tensors: list[Tensor]) -> list[float]:
    """Return the norms of dense floating-point tensors; one host sync for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for one in tensors:
        if type(one) is Tensor and one.layout is torch.strided and one.is_floating_point() and one.numel():
            by_device.setdefault(one.device, []).append(one)
    found: list[float] = []
    for group in by_device.values():
        found += torch.stack([norm.double() for norm in torch._foreach_norm(group)]).tolist()
    return found
