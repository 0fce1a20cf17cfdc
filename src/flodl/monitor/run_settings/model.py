"""Describe a model: its class, its structure, its weights and buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core.contents.leaves import array_text
from flodl.core.plain import plain, short_hash

# How many elements of each tensor are hashed.
NUM_ELEMENTS = 64
_MAX_BUFFERS = 500
_MAX_BUFFER_BYTES = 1 << 16


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Return the class, the size and a hash of the structure of a model.

    >>> describe_model(nn.Linear(2, 1))
    {'class': 'Linear', 'parameters': 3, 'trainable': 3, 'structure': '...'}
    """
    parameters = [one for one in model.parameters() if not is_lazy(one)]
    return {
        "class": type(model).__name__,
        "parameters": sum(one.numel() for one in parameters),
        "trainable": sum(one.numel() for one in parameters if one.requires_grad),
        # The code of classes is in another part of the record.
        "structure": _structure(model),
    }


def _structure(model: nn.Module) -> str:
    if "flodl.graph" in sys.modules:
        from flodl.graph import Graph, structure_of

        if isinstance(model, Graph):
            return structure_of(model).earlier
    lines = [f"{name} {type(one).__name__}({one.extra_repr()})" for name, one in model.named_modules()]
    lines += [f"{name} {_form(one)}" for name, one in (*model.named_parameters(), *model.named_buffers())]
    return short_hash("\n".join(lines).encode())


def _form(tensor: Tensor) -> str:
    return "lazy" if is_lazy(tensor) else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"


def hash_of_weights(model: nn.Module) -> str:
    """Return a hash of a few elements of every tensor of a model, which tells other weights apart.

    >>> hash_of_weights(nn.Linear(2, 1)) == hash_of_weights(nn.Linear(2, 1))
    False
    """
    return hash_of_tensors((*model.parameters(), *model.buffers()))


def hash_of_tensors(tensors: Iterable[Tensor]) -> str:
    """Return a hash of a few elements of every tensor."""
    chosen: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            continue
        flat = tensor.detach()
        flat = flat.reshape(-1) if flat.numel() <= NUM_ELEMENTS else _spread(flat)
        chosen.setdefault(tensor.dtype, []).append(flat.cpu() if flat.device.type == "cpu" else flat)
    content = [_joined(parts).contiguous().view(torch.uint8).numpy().tobytes() for parts in chosen.values()]
    return short_hash(b"".join(content))


def describe_buffers(model: nn.Module) -> dict[str, Any]:
    """Return the values of small buffers, or hashes of them, by path.

    >>> describe_buffers(nn.BatchNorm1d(2))
    {'running_mean': [0.0, 0.0], 'running_var': [1.0, 1.0], 'num_batches_tracked': 0}
    """
    found: dict[str, Any] = {}
    for path, buffer in model.named_buffers():
        is_known = not is_lazy(buffer) and not buffer.is_meta and buffer.layout is torch.strided
        if len(found) < _MAX_BUFFERS and is_known and buffer.nbytes <= _MAX_BUFFER_BYTES:
            with suppress(TypeError, ValueError, RuntimeError, NotImplementedError):  # a subclass, quantized
                found[path] = array_text(buffer)
    return dict(plain(found))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors as one on the CPU, with one copy if they are on the same device."""
    if len({one.device for one in parts}) == 1:
        return torch.cat([*parts]).cpu()
    return torch.cat([one.cpu() for one in parts])


def _spread(tensor: Tensor) -> Tensor:
    """Return elements from all over a tensor, without a copy of it."""
    numbers = torch.arange(NUM_ELEMENTS, device=tensor.device) * (tensor.numel() // NUM_ELEMENTS)
    indices = torch.unravel_index(numbers, tensor.shape)
    return tensor[indices]
