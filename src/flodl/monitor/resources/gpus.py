"""The GPUs of this machine, read through their driver and never through CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

GpuReader = Callable[[], "list[Gpu]"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment; what its driver does not tell is None.

    >>> Gpu(device=0, name="H200", util_pct=82.0).to_dict()
    {'device': 0, 'name': 'H200', 'util_pct': 82.0}
    """

    device: int
    name: str
    uuid: str = ""
    util_pct: float | None = None
    vram_used_bytes: int | None = None
    vram_total_bytes: int | None = None
    vram_allocated_bytes: int | None = None
    vram_reserved_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give what is known as plain data, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None and key != "uuid"}


def with_allocator(gpus: Sequence[Gpu], pools: Mapping[str, tuple[int, int, int]]) -> list[Gpu]:
    """Add what torch's allocator holds, and keep only the GPUs that torch may use.

    `pools` is uuid → (index in torch, bytes in use, bytes reserved). Drivers count all GPUs of the machine;
    torch counts those left visible, so the two meet by uuid and torch's index wins.

    >>> with_allocator([Gpu(0, "a", "u0"), Gpu(1, "b", "u1")], {"u1": (0, 10, 20)})[0].to_dict()
    {'device': 0, 'name': 'b', 'vram_allocated_bytes': 10, 'vram_reserved_bytes': 20}
    """
    mine = []
    for gpu in gpus:
        if gpu.uuid in pools:
            index, allocated, reserved = pools[gpu.uuid]
            known = replace(gpu, device=index, vram_allocated_bytes=allocated, vram_reserved_bytes=reserved)
            mine.append(known)
    return sorted(mine, key=lambda gpu: gpu.device) or list(gpus)
