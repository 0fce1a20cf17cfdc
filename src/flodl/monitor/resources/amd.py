"""Read AMD GPUs with the `amdsmi` module of ROCm."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from .gpus import Gpu, GpuReader

Value = TypeVar("Value")


def open_reader() -> GpuReader | None:
    """Return a function that reads every AMD GPU, or None if there is none."""
    amdsmi = import_module("amdsmi")
    amdsmi.amdsmi_init()
    handles = list(enumerate(amdsmi.amdsmi_get_processor_handles()))
    return (lambda: [_read(amdsmi, index, handle) for index, handle in handles]) if handles else None


def _read(amdsmi: Any, index: int, handle: Any) -> Gpu:
    memory = _or_none(lambda: amdsmi.amdsmi_get_gpu_vram_usage(handle)) or {}
    mebibytes = {key: value * 1024**2 for key, value in memory.items() if isinstance(value, int)}
    return Gpu(
        device=index,
        name=_or_none(lambda: str(amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"])) or f"GPU {index}",
        uuid=_or_none(lambda: str(amdsmi.amdsmi_get_gpu_device_uuid(handle))) or "",
        util_pct=_or_none(lambda: float(amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"])),
        vram_used_bytes=mebibytes.get("vram_used"),
        vram_total_bytes=mebibytes.get("vram_total"),
        temperature_c=_or_none(lambda: _temperature(amdsmi, handle)),
        power_w=_or_none(lambda: float(amdsmi.amdsmi_get_power_info(handle)["average_socket_power"])),
    )


def _temperature(amdsmi: Any, handle: Any) -> float:
    edge, now = amdsmi.AmdSmiTemperatureType.EDGE, amdsmi.AmdSmiTemperatureMetric.CURRENT
    return float(amdsmi.amdsmi_get_temp_metric(handle, edge, now))


def _or_none(read: Callable[[], Value]) -> Value | None:
    try:
        return read()
    except Exception:  # every query fails on some GPU, each with its own error
        return None
