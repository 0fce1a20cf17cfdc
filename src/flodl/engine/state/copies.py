"""Temporary copies of a step's state, in host memory if they are large."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# In all. A trial keeps two copies of the state of a step; on the device, those of a large model could need
# as much memory as its training.
MAX_DEVICE_BYTES = 64 << 20


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of some tensors; those of large states on CUDA are in the memory of the host."""
    on_device = {name: tensor for name, tensor in tensors.items() if _may_move(tensor)}
    if sum(tensor.nbytes for tensor in on_device.values()) <= MAX_DEVICE_BYTES:
        return {name: tensor.clone() for name, tensor in tensors.items()}
    copies = {
        name: _to_host(tensor) if name in on_device else tensor.clone() for name, tensor in tensors.items()
    }
    for device in {tensor.device for tensor in on_device.values()}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def free_memory(device: torch.device) -> None:
    """Return unused memory to a CUDA device and to the host after a trial; torch would keep it."""
    if device.type != "cuda":
        return
    torch.cuda.empty_cache()
    empty = getattr(torch._C, "_accelerator_emptyHostCache", getattr(torch._C, "_host_emptyCache", None))
    if empty is not None:
        empty()


def is_memory_tight(device: torch.device) -> bool:
    """Return whether a CUDA device has less free memory than torch holds on it."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return free < torch.cuda.memory_reserved(device)


def _may_move(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_nested


def _to_host(tensor: Tensor) -> Tensor:
    # From page-locked memory, the state is restored ten times as fast.
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)
