"""What torch's caching allocator holds on each GPU, asked only where CUDA already runs."""

from __future__ import annotations

import sys
from typing import Any


def cuda_pools() -> dict[str, tuple[int, int, int]]:
    """Give uuid → (index in torch, bytes in use, bytes reserved); nothing while CUDA is not initialised.

    Reading the allocator's counters makes no CUDA call, so it is safe beside a recording.
    """
    torch: Any = sys.modules.get("torch")  # looking must not be what imports torch
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
    except Exception:  # torch half imported, or an allocator without counters
        return {}
