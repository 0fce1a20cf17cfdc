"""Read NVIDIA GPUs with NVML through ctypes: eight calls of about a microsecond each, without a CUDA context.

The library is part of the driver, so nothing has to be installed. The list of processes is never requested:
it is the only slow call.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

from .gpus import Gpu, GpuReader

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_CORE_TEMPERATURE = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class _Device:
    index: int
    handle: ctypes.c_void_p
    name: str
    uuid: str


def open_reader() -> GpuReader | None:
    """Return a function that reads every NVIDIA GPU, or None if there is none."""
    library = ctypes.CDLL(_LIBRARY)
    if library.nvmlInit_v2() != 0:
        return None
    devices = _devices(library)
    return (lambda: [_read(library, device) for device in devices]) if devices else None


def _devices(library: ctypes.CDLL) -> list[_Device]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    devices = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            name = _text(library, "nvmlDeviceGetName", handle) or f"GPU {index}"
            uuid = _text(library, "nvmlDeviceGetUUID", handle).removeprefix("GPU-")
            devices.append(_Device(index, handle, name, uuid))
    return devices


def _read(library: ctypes.CDLL, device: _Device) -> Gpu:
    utilization, memory = _Utilization(), _Memory()
    temperature, power = ctypes.c_uint(), ctypes.c_uint()
    handle = device.handle
    # Each call may fail independently: a MIG slice has memory but no utilization.
    has_utilization = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0
    has_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    has_temperature = (
        library.nvmlDeviceGetTemperature(handle, _CORE_TEMPERATURE, ctypes.byref(temperature)) == 0
    )
    has_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0
    return Gpu(
        device=device.index,
        name=device.name,
        uuid=device.uuid,
        util_pct=float(utilization.gpu) if has_utilization else None,
        vram_used_bytes=int(memory.used) if has_memory else None,
        vram_total_bytes=int(memory.total) if has_memory else None,
        temperature_c=float(temperature.value) if has_temperature else None,
        power_w=power.value / 1000 if has_power else None,
    )


def _text(library: ctypes.CDLL, call: str, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    if getattr(library, call)(handle, buffer, ctypes.c_uint(len(buffer))) != 0:
        return ""
    return buffer.value.decode("utf-8", "replace")
