"""The choice between resident data (all on the device) and streaming, from measured sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flodl.core.errors import DataError
from flodl.core.formats import format_bytes
from flodl.core.integers import is_integer

MODES = ("auto", "resident", "streaming")


@dataclass(frozen=True)
class Placement:
    """The mode and the reason for it."""

    mode: str
    reason: str


def choose_mode(
    mode: str,
    *,
    device: torch.device,
    num_bytes: int | None,
    is_on_device: bool,
    free_bytes: int | None,
    memory_cap: float | int,
    obstacle: str = "",
) -> Placement:
    """Return the placement; `obstacle` is the reason why the source cannot be gathered on the device.

    `is_on_device` means that the data is already in the memory of the device.

    >>> from functools import partial
    >>> choose = partial(choose_mode, "auto", device=torch.device("cuda", 0), is_on_device=False)
    >>> choose = partial(choose, free_bytes=10**10, memory_cap=0.5)
    >>> choose(num_bytes=10**8).reason
    'the data takes 95 MB, and memory_cap=0.5 allows 4.7 GB of the 9.3 GB free on cuda:0'
    >>> choose(num_bytes=10**10).mode
    'streaming'
    """
    if mode not in MODES:
        raise DataError(f"mode={mode!r}. Pass one of {', '.join(map(repr, MODES))}.")
    if mode == "streaming":
        return Placement("streaming", "mode='streaming' was requested")
    if mode == "resident":
        return Placement("resident", "mode='resident' was requested")
    if obstacle or num_bytes is None:
        return Placement("streaming", obstacle)
    if is_on_device:
        where = "in host memory" if device.type == "cpu" else f"on {device}"
        return Placement("resident", f"the data ({format_bytes(num_bytes)}) is already {where}")
    if device.type == "cpu":
        return Placement("streaming", f"the data ({format_bytes(num_bytes)}) stays in memory-mapped files")
    if free_bytes is None:
        return Placement("streaming", f"the free memory of {device} is unknown")
    allowed = allowed_bytes(free_bytes, memory_cap)
    free = f"{format_bytes(free_bytes)} free on {device}"
    cap = f"memory_cap={memory_cap} allows {format_bytes(allowed)} of the {free}"
    if num_bytes <= allowed:
        return Placement("resident", f"the data takes {format_bytes(num_bytes)}, and {cap}")
    return Placement("streaming", f"the data takes {format_bytes(num_bytes)}, but {cap}")


def check_memory_cap(memory_cap: float | int) -> None:
    """Raise unless the cap is a fraction of the free memory or a number of bytes."""
    is_fraction = isinstance(memory_cap, float) and 0.0 < memory_cap <= 1.0
    is_count = is_integer(memory_cap, at_least=0)
    if not is_fraction and not is_count:
        raise DataError(
            f"memory_cap={memory_cap!r}. Pass a fraction of the free memory such as 0.5, "
            "or an integer number of bytes."
        )


def allowed_bytes(free_bytes: int, memory_cap: float | int) -> int:
    """Return how many bytes the loader may use: a fraction of the free memory, or a number of bytes.

    >>> allowed_bytes(1000, 0.5), allowed_bytes(1000, 300), allowed_bytes(1000, 5000)
    (500, 300, 1000)
    """
    return int(free_bytes * memory_cap) if isinstance(memory_cap, float) else min(free_bytes, memory_cap)


def free_device_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device, including torch's unused reserve; None for other devices."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
