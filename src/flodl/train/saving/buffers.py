"""Save and restore the buffers that a `state_dict` omits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that were registered with persistent=False, by path.

    >>> model = nn.Module()
    >>> model.register_buffer("seen", torch.zeros(2), persistent=False)
    >>> unsaved_buffers(model)
    {'seen': tensor([0., 0.])}
    """
    saved = model.state_dict()
    return {
        path: buffer
        for path, buffer in model.named_buffers()
        if path not in saved and buffer.layout is torch.strided and not is_lazy(buffer) and not buffer.is_meta
    }


def restore_buffers(model: nn.Module, saved: Mapping[str, Any], device: torch.device) -> None:
    """Restore the values of `unsaved_buffers`, including buffers that the model creates or resizes."""
    own, modules = unsaved_buffers(model), dict(model.named_modules())
    for path, value in saved.items():
        held, (owner, _, name) = own.get(path), path.rpartition(".")
        module = modules.get(owner)
        if held is None:
            if module is not None and getattr(module, name, None) is None:
                module.register_buffer(name, value.to(device), persistent=False)
        elif held.shape != value.shape:
            setattr(module, name, value.to(held))
        elif not torch.equal(_bytes(held.cpu()), _bytes(value.to(held.dtype))):
            if shares_memory(held):
                setattr(module, name, value.to(held))
            else:
                held.copy_(value)  # in place: a captured step reads from this memory


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes: torch cannot compare values of every dtype."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1, 1).view(torch.uint8)


def shares_memory(tensor: Tensor) -> bool:
    """Return whether several elements share one memory location, so that they cannot be written in place.

    >>> shares_memory(torch.zeros(1).expand(3)), shares_memory(torch.zeros(3))
    (True, False)
    """
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))


def separate_buffers(model: nn.Module) -> None:
    """Replace buffers whose elements share memory by copies that can be loaded into."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if shares_memory(buffer):
                setattr(module, name, buffer.clone())
