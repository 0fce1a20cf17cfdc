"""Looking at this machine: processor, memory and GPUs, without torch."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from pathlib import Path

from . import amd, nvidia
from .hardware import Gpu, Hardware, ask, read


def detect(root: Path = Path("/")) -> Hardware:
    """Look at this machine; `root` is where its `proc` and `sys` are mounted."""
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
    for line in read(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return ask(["sysctl", "-n", "machdep.cpu.brand_string"])[0].strip()
    return platform.processor() or platform.machine()


def _num_threads() -> int:
    """Give the cores that this process may use: a container or `taskset` may allow fewer than there are."""
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
