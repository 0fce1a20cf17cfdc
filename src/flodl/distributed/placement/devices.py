"""The devices of this machine for ranks that name none."""

from __future__ import annotations

from flodl.core import DistributedError


def local_devices(num: int) -> tuple[str, ...]:
    """Return the devices for this many ranks: CUDA devices if there are any, else the CPU for each."""
    import torch

    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not num_cuda:
        return ("cpu",) * num
    if num > num_cuda:
        raise DistributedError(
            f"{num} ranks were asked for, and this machine has {num_cuda} CUDA devices. Name the devices to "
            "use one several times: cuda:0,cuda:0."
        )
    return tuple(f"cuda:{index}" for index in range(num))
