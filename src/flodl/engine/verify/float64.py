"""A window rerun in float64, as the reference where eager's own float32 gradients are too inexact."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor
from torch.utils._pytree import tree_map_only

from flodl.core.interrupts import uninterrupted

from ..device.tensors import NARROW
from ..program.program import StepBody
from ..program.runner import Micro


@contextmanager
def in_float64(body: StepBody, window: Sequence[Micro]) -> Iterator[list[Micro]]:
    """Convert the parameters and buffers of a step to float64 for a while; yield the window in float64.

    The tensor objects stay the same, and get their own memory and gradients back afterwards. Other state that
    the step reaches is not converted.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> body = SimpleNamespace(model=model, parameters=[*model.parameters()])
    >>> pointer = model.weight.data_ptr()
    >>> with in_float64(body, []):
    ...     model(torch.zeros(1, 2).double()).dtype
    torch.float64
    >>> model.weight.dtype, model.weight.data_ptr() == pointer, model.weight.grad
    (torch.float32, True, None)
    """
    tensors = (*body.parameters, *body.model.parameters(), *body.model.buffers())
    narrow = {id(tensor): tensor for tensor in tensors if tensor.dtype in NARROW}
    saved = [(tensor, tensor.data, tensor.grad) for tensor in narrow.values()]
    try:
        for tensor, data, _ in saved:
            tensor.grad = None
            tensor.data = data.double()
        with warnings.catch_warnings():
            # For example that the weights of a recurrent layer are no longer one contiguous chunk.
            warnings.simplefilter("ignore")
            yield [replace(micro, batch=tree_map_only(Tensor, _to_float64, micro.batch)) for micro in window]
    finally:
        with uninterrupted():
            for tensor, data, grad in saved:
                tensor.grad = None
                tensor.data = data
                tensor.grad = grad


def _to_float64(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype in NARROW else tensor
