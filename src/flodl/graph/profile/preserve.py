"""Running a model and leaving no trace: state, buffers and random numbers are as they were afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core.rng_state import preserve_rng_state

from ..control.traces import Traces
from ..plan.memory import Memory, tensors


@contextmanager
def preserve_state(model: nn.Module, *values: Any) -> Iterator[None]:
    """Let the block call the model and change its attributes; afterwards the model is as before.

    Buffers and tensor attributes are swapped for copies, so that the originals are not even written to:
    nothing that autograd saved of them goes stale. `values` tell on which devices random numbers are drawn.

    >>> norm = nn.BatchNorm1d(2)
    >>> with preserve_state(norm):
    ...     _ = norm(torch.ones(4, 2))
    >>> norm.running_mean, int(norm.num_batches_tracked)
    (tensor([0., 0.]), 0)
    """
    kept = [_Kept(module) for module in model.modules()]
    copies: dict[int, Tensor] = {}
    for each in kept:
        each.swap(copies)
    try:
        with preserve_rng_state(*_cuda_devices([*model.parameters(), *model.buffers(), *tensors(values)])):
            yield
    finally:
        for each in kept:
            each.restore()


class _Kept:
    """What one module holds, apart from its parameters and its parts."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(vars(module))
        self._buffers = dict(module._buffers)
        self._remembered = [
            (value, dict(vars(value)))
            for value in self._attributes.values()
            if isinstance(value, Memory | Traces)
        ]

    def swap(self, copies: dict[int, Tensor]) -> None:
        """Put copies in the place of tensors; one that sits in two places stays one."""
        holders: list[dict[str, Any]] = [vars(self._module), self._module._buffers]
        for holder in holders:
            for name, value in holder.items():
                if isinstance(value, Tensor):
                    holder[name] = copies.setdefault(id(value), value.detach().clone())

    def restore(self) -> None:
        _put_back(vars(self._module), self._attributes)
        _put_back(self._module._buffers, self._buffers)
        for value, attributes in self._remembered:
            _put_back(vars(value), attributes)


def _put_back(holder: dict[str, Any], content: dict[str, Any]) -> None:
    holder.clear()
    holder.update(content)


def _cuda_devices(values: Iterable[Tensor]) -> list[torch.device]:
    return sorted({value.device for value in values if value.is_cuda}, key=lambda device: device.index)
