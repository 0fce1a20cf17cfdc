"""Detect NVIDIA GPUs and their driver with `nvidia-smi`, else NVML, else `/proc`."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path

from .hardware import Gpu, read_or_empty, run_tool

Found = tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]  # GPUs, driver, notes

_FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap")


def probe(root: Path) -> Found:
    """Return the GPUs, the driver version, and notes about problems."""
    program = shutil.which("nvidia-smi") or _wsl_program(root)
    notes: tuple[str, ...] = ()
    if program:
        gpus, driver, error = _query_program(program)
        if not error:
            return gpus, driver, ()
        notes = (error,)
    gpus, driver = _query_nvml()
    if gpus:
        return gpus, driver, notes
    driver = _kernel_driver(root)
    if driver and not program:
        notes = (
            f"the NVIDIA driver {driver} is loaded, but nvidia-smi was not found, so its GPUs are unknown",
        )
    return (), driver, notes


def _wsl_program(root: Path) -> str | None:
    """Return the nvidia-smi of WSL2, which may not be on the PATH."""
    program = root / "usr/lib/wsl/lib/nvidia-smi"
    return str(program) if program.is_file() else None


def _query_program(program: str) -> tuple[tuple[Gpu, ...], str | None, str]:
    error = ""
    for fields in (_FIELDS, _FIELDS[:-1]):  # drivers before 510 do not know compute_cap and fail
        text, error = run_tool([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if not error:
            rows = [line.split(", ") for line in text.splitlines() if line.strip()]
            gpus = tuple(_gpu(row) for row in rows if len(row) >= 4)
            return gpus, rows[0][3] if gpus else None, ""
    return (), None, error


def _gpu(row: list[str]) -> Gpu:
    index, name, memory, _driver, *capability = (value.strip() for value in row)
    known = capability and re.fullmatch(r"\d+\.\d+", capability[0])
    return Gpu(
        index=int(index) if index.isdigit() else 0,
        name=name,
        vendor="nvidia",
        capability=capability[0] if known else "",
        memory_bytes=int(memory) * 1024**2 if memory.isdigit() else None,  # shared memory is "[N/A]"
    )


def _query_nvml() -> tuple[tuple[Gpu, ...], str | None]:
    """Query the driver library if the package nvidia-ml-py is installed."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return (), None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return (), None
    try:
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
            gpus.append(Gpu(index, nvml.nvmlDeviceGetName(device), "nvidia", f"{major}.{minor}", memory))
        return tuple(gpus), str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return (), None
    finally:
        nvml.nvmlShutdown()


def _kernel_driver(root: Path) -> str | None:
    found = re.search(
        r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_or_empty(root / "proc/driver/nvidia/version")
    )
    return found[1] if found else None
