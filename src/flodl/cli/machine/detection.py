"""Detect the CPU, memory and GPUs of this machine without torch."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from pathlib import Path

from . import amd, nvidia
from .hardware import Gpu, Hardware, read_or_empty, run_tool


def detect(root: Path = Path("/")) -> Hardware:
    """Return the hardware of this machine; `root` is the folder with its `proc` and `sys`."""
    system, machine = platform.system().lower(), _machine()
    nvidia_gpus, driver, notes = nvidia.probe(root)
    gpus = nvidia_gpus + amd.probe(root)
    if (system, machine) == ("darwin", "arm64"):
        gpus += (Gpu(0, _cpu_name(root), "apple"),)
    return Hardware(
        system=system,
        machine=machine,
        cpu=_cpu_name(root),
        num_threads=_num_threads(),
        ram_bytes=_ram_bytes(),
        gpus=gpus,
        nvidia_driver=driver,
        rocm=amd.rocm_version(root),
        notes=notes,
    )


def _machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64"}.get(name, name)


def _cpu_name(root: Path) -> str:
    for line in read_or_empty(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return run_tool(["sysctl", "-n", "machdep.cpu.brand_string"])[0].strip()
    return platform.processor() or platform.machine()


def _num_threads() -> int:
    """Return the cores that this process may use; a container or `taskset` may restrict them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        pass
    try:
        return int(import_module("psutil").virtual_memory().total)
    except ImportError:
        return None
