"""NVIDIA GPUs and their driver, by `nvidia-smi`, else by NVML, else by what the driver says in `/proc`."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path

from .hardware import Gpu, ask, read

Found = tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]  # GPUs, driver, notes

_FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap")


def probe(root: Path) -> Found:
    """Give the GPUs, the version of the driver, and what is odd about them."""
    program = shutil.which("nvidia-smi") or _of_wsl(root)
    notes: tuple[str, ...] = ()
    if program:
        gpus, driver, trouble = _ask_program(program)
        if not trouble:
            return gpus, driver, ()
        notes = (trouble,)
    gpus, driver = _ask_nvml()
    if gpus:
        return gpus, driver, notes
    driver = _driver_of_kernel(root)
    if driver and not program:
        notes = (f"the NVIDIA driver {driver} is loaded, but there is no nvidia-smi to ask for its GPUs",)
    return (), driver, notes


def _of_wsl(root: Path) -> str | None:
    """Windows puts nvidia-smi where a shell inside WSL2 may not look."""
    program = root / "usr/lib/wsl/lib/nvidia-smi"
    return str(program) if program.is_file() else None


def _ask_program(program: str) -> tuple[tuple[Gpu, ...], str | None, str]:
    trouble = ""
    for fields in (_FIELDS, _FIELDS[:-1]):  # drivers before 510 know no compute_cap, and refuse the question
        text, trouble = ask([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if not trouble:
            rows = [line.split(", ") for line in text.splitlines() if line.strip()]
            gpus = tuple(_gpu(row) for row in rows if len(row) >= 4)
            return gpus, rows[0][3] if gpus else None, ""
    return (), None, trouble


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


def _ask_nvml() -> tuple[tuple[Gpu, ...], str | None]:
    """Ask the driver's library, where the package nvidia-ml-py is there to speak to it."""
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


def _driver_of_kernel(root: Path) -> str | None:
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read(root / "proc/driver/nvidia/version"))
    return found[1] if found else None
