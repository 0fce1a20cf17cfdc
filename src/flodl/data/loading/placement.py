"""Where the data live while training: on the device as a whole, or streamed to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flodl.core.errors import DataError
from flodl.core.formats import format_bytes
from flodl.core.integers import is_integer

MODES = ("auto", "resident", "streaming")


@dataclass(frozen=True)
class Placement:
    """The mode, and why."""

    mode: str
    reason: str


def choose(
    mode: str,
    *,
    device: torch.device,
    num_bytes: int | None,
    lies_there: bool,
    free_bytes: int | None,
    memory_cap: float | int,
    obstacle: str = "",
) -> Placement:
    """Decide by the measured sizes; `obstacle` says why the source is not a block of tensors.

    `lies_there` means that the data are in the memory of the device already.

    >>> from functools import partial
    >>> cuda = torch.device("cuda", 0)
    >>> decide = partial(choose, "auto", device=cuda, lies_there=False, free_bytes=10**10, memory_cap=0.5)
    >>> decide(num_bytes=10**8).reason
    'the data take 95 MB, and memory_cap=0.5 allows 4.7 GB of the 9.3 GB free on cuda:0'
    >>> decide(num_bytes=10**10).mode
    'streaming'
    """
    if mode not in MODES:
        raise DataError(f"mode={mode!r}. Give one of {', '.join(map(repr, MODES))}.")
    if mode == "streaming":
        return Placement("streaming", "mode='streaming' was asked for")
    if mode == "resident":
        return Placement("resident", "mode='resident' was asked for")
    if obstacle or num_bytes is None:
        return Placement("streaming", obstacle)
    if lies_there:
        where = "in the host's memory" if device.type == "cpu" else f"on {device}"
        return Placement("resident", f"the data ({format_bytes(num_bytes)}) are {where} already")
    if device.type == "cpu":
        return Placement("streaming", f"the data ({format_bytes(num_bytes)}) stay in their files")
    if free_bytes is None:
        return Placement("streaming", f"the free memory of {device} is not known")
    allowed = allowed_bytes(free_bytes, memory_cap)
    free = f"{format_bytes(free_bytes)} free on {device}"
    room = f"memory_cap={memory_cap} allows {format_bytes(allowed)} of the {free}"
    if num_bytes <= allowed:
        return Placement("resident", f"the data take {format_bytes(num_bytes)}, and {room}")
    return Placement("streaming", f"the data take {format_bytes(num_bytes)}, but {room}")


def check_cap(memory_cap: float | int) -> None:
    """Refuse a cap that is neither a share of the free memory nor a number of bytes."""
    is_share = isinstance(memory_cap, float) and 0.0 < memory_cap <= 1.0
    is_count = is_integer(memory_cap, at_least=0)
    if not is_share and not is_count:
        raise DataError(
            f"memory_cap={memory_cap!r}. Give a share of the free memory such as 0.5, "
            "or a whole number of bytes."
        )


def allowed_bytes(free_bytes: int, memory_cap: float | int) -> int:
    """Give the bytes that the loader may take: a share of what is free, or a number of bytes.

    >>> allowed_bytes(1000, 0.5), allowed_bytes(1000, 300), allowed_bytes(1000, 5000)
    (500, 300, 1000)
    """
    return int(free_bytes * memory_cap) if isinstance(memory_cap, float) else min(free_bytes, memory_cap)


def measure_free(device: torch.device) -> int | None:
    """Give the free memory of a device, torch's reserve included; nothing where it cannot be asked."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
