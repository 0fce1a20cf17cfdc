"""GPU readings; they come from the driver, never from CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

GpuReader = Callable[[], "list[Gpu]"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One reading of a GPU; values that its driver does not report are None.

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
        """Return the known values as plain data for JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None and key != "uuid"}


def with_allocator(gpus: Sequence[Gpu], pools: Mapping[str, tuple[int, int, int]]) -> list[Gpu]:
    """Add the memory of torch's allocator, and keep only the GPUs that torch may use.

    `pools` is uuid → (index in torch, bytes in use, bytes reserved). The driver numbers all GPUs of the
    machine and torch only the visible ones, so they are matched by uuid and torch's index is used.

    >>> with_allocator([Gpu(0, "a", "u0"), Gpu(1, "b", "u1")], {"u1": (0, 10, 20)})[0].to_dict()
    {'device': 0, 'name': 'b', 'vram_allocated_bytes': 10, 'vram_reserved_bytes': 20}
    """
    visible = []
    for gpu in gpus:
        if gpu.uuid in pools:
            index, allocated, reserved = pools[gpu.uuid]
            known = replace(gpu, device=index, vram_allocated_bytes=allocated, vram_reserved_bytes=reserved)
            visible.append(known)
    return sorted(visible, key=lambda gpu: gpu.device) or list(gpus)
