"""A window in float64, to judge by: where float32 is loose, eager's own gradients are not the measure."""

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
    """Let the parameters and buffers of a body be float64 for a moment; gives the window in float64.

    They are the same tensors with other memory, and get their own back, with its numbers and gradients.
    What the step reaches beside them stays as it is.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> body = SimpleNamespace(model=model, parameters=[*model.parameters()])
    >>> place = model.weight.data_ptr()
    >>> with in_float64(body, []):
    ...     model(torch.zeros(1, 2).double()).dtype
    torch.float64
    >>> model.weight.dtype, model.weight.data_ptr() == place, model.weight.grad
    (torch.float32, True, None)
    """
    tensors = (*body.parameters, *body.model.parameters(), *body.model.buffers())
    narrow = {id(tensor): tensor for tensor in tensors if tensor.dtype in NARROW}
    kept = [(tensor, tensor.data, tensor.grad) for tensor in narrow.values()]
    try:
        for tensor, numbers, _ in kept:
            tensor.grad = None
            tensor.data = numbers.double()
        with warnings.catch_warnings():
            # Weights of a recurrent layer no longer lie in one piece, for example.
            warnings.simplefilter("ignore")
            yield [replace(micro, batch=tree_map_only(Tensor, _widened, micro.batch)) for micro in window]
    finally:
        with uninterrupted():
            for tensor, numbers, grad in kept:
                tensor.grad = None
                tensor.data = numbers
                tensor.grad = grad


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype in NARROW else tensor
