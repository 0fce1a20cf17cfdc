"""The memory of a device: in use, at its peak, and in total."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flodl.core import StepError
from flodl.core.device import parse_device
from flodl.core.formats import format_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: in tensors, reserved by torch's allocator, the peaks of both, and the total.

    >>> print(MemoryUse(1 << 30, 2 << 30, 3 << 30, 4 << 30, 8 << 30))
    1.0 GB in tensors (3.0 GB at most), 2.0 GB kept (4.0 GB at most), of 8.0 GB
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        allocated, reserved, peak, peak_reserved, total = map(
            format_bytes,
            (
                self.allocated_bytes,
                self.reserved_bytes,
                self.peak_allocated_bytes,
                self.peak_reserved_bytes,
                self.total_bytes,
            ),
        )
        return (
            f"{allocated} in tensors ({peak} at most), {reserved} kept ({peak_reserved} at most), of {total}"
        )


def memory_use(device: torch.device | str | int | None = None) -> MemoryUse | None:
    """Return the memory of a CUDA device, by default the current one; None for other kinds of devices."""
    found = _cuda_device(device)
    if found is None:
        return None
    stats = torch.cuda.memory_stats(found)
    return MemoryUse(
        stats.get("allocated_bytes.all.current", 0),
        stats.get("reserved_bytes.all.current", 0),
        stats.get("allocated_bytes.all.peak", 0),
        stats.get("reserved_bytes.all.peak", 0),
        torch.cuda.get_device_properties(found).total_memory,
    )


def forget_peaks(device: torch.device | str | int | None = None) -> None:
    """Reset the peaks to the present use."""
    found = _cuda_device(device)
    if found is not None:
        torch.cuda.reset_peak_memory_stats(found)


def _cuda_device(device: torch.device | str | int | None) -> torch.device | None:
    """Return the CUDA device; None for other kinds of devices; raise if it does not exist."""
    if device is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    found = parse_device(
        device,
        error=StepError,
        advice="Use 'cuda', 'cuda:0' or 'cpu'.",
        advice_without_cuda="Leave it out, or use 'cpu'.",
    )
    return found if found.type == "cuda" else None
