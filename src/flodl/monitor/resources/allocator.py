"""The memory of torch's caching allocator on each GPU, read only if CUDA is already initialized."""

from __future__ import annotations

import sys
from typing import Any


def cuda_pools() -> dict[str, tuple[int, int, int]]:
    """Return uuid → (index in torch, bytes in use, bytes reserved); empty if CUDA is not initialized.

    Reading the allocator's counters makes no CUDA call, so it is safe during a graph capture.
    """
    torch: Any = sys.modules.get("torch")  # reading must not import torch
    try:
        if torch is None or not torch.cuda.is_initialized():
            return {}
        pools = {}
        for index in range(torch.cuda.device_count()):
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            counters = torch.cuda.memory_stats_as_nested_dict(index)
            allocated, reserved = (
                int(counters[key]["all"]["current"]) for key in ("allocated_bytes", "reserved_bytes")
            )
            pools[uuid] = (index, allocated, reserved)
        return pools
    except Exception:  # torch is only partly imported, or the allocator has no counters
        return {}
