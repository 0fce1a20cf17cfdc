"""How much memory a device has, holds and has held at most."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flodl.core.formats import format_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: in tensors, kept by torch's allocator, the most of either, and in all.

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
    """Give the memory of a CUDA device; None where there is no such device to ask."""
    if not torch.cuda.is_available() or torch.device(device or "cuda").type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    return MemoryUse(
        stats.get("allocated_bytes.all.current", 0),
        stats.get("reserved_bytes.all.current", 0),
        stats.get("allocated_bytes.all.peak", 0),
        stats.get("reserved_bytes.all.peak", 0),
        torch.cuda.get_device_properties(device or 0).total_memory,
    )


def forget_peaks(device: torch.device | str | int | None = None) -> None:
    """Count the most memory from now on."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(device)
