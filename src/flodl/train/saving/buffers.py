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
        elif not torch.equal(held.cpu(), value.to(held.dtype)):
            if 0 in held.stride():
                setattr(module, name, value.to(held))  # several elements share memory
            else:
                held.copy_(value)  # in place: a captured step reads from this memory
