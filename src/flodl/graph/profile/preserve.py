"""Run a model without changing it: restore state, buffers and the RNG state afterwards."""

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
    """Restore the model's attributes and the RNG state after the block.

    Buffers and tensor attributes are replaced by copies, so that the originals are not written to and
    tensors that autograd saved stay valid. `values` determine the devices whose RNG state is restored.

    >>> norm = nn.BatchNorm1d(2)
    >>> with preserve_state(norm):
    ...     _ = norm(torch.ones(4, 2))
    >>> norm.running_mean, int(norm.num_batches_tracked)
    (tensor([0., 0.]), 0)
    """
    saved = [_SavedModule(module) for module in model.modules()]
    copies: dict[int, Tensor] = {}
    for each in saved:
        each.swap(copies)
    try:
        with preserve_rng_state(*_cuda_devices([*model.parameters(), *model.buffers(), *tensors(values)])):
            yield
    finally:
        for each in saved:
            each.restore()


class _SavedModule:
    """The attributes and buffers of one module, without its parameters and children."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(vars(module))
        self._buffers = dict(module._buffers)
        self._memories = [
            (value, dict(vars(value)))
            for value in self._attributes.values()
            if isinstance(value, Memory | Traces)
        ]

    def swap(self, copies: dict[int, Tensor]) -> None:
        """Replace tensors by copies; a tensor that is used twice gets one copy."""
        holders: list[dict[str, Any]] = [vars(self._module), self._module._buffers]
        for holder in holders:
            for name, value in holder.items():
                if isinstance(value, Tensor):
                    holder[name] = copies.setdefault(id(value), value.detach().clone())

    def restore(self) -> None:
        _replace_content(vars(self._module), self._attributes)
        _replace_content(self._module._buffers, self._buffers)
        for value, attributes in self._memories:
            _replace_content(vars(value), attributes)


def _replace_content(holder: dict[str, Any], content: dict[str, Any]) -> None:
    holder.clear()
    holder.update(content)


def _cuda_devices(values: Iterable[Tensor]) -> list[torch.device]:
    return sorted({value.device for value in values if value.is_cuda}, key=lambda device: device.index)
