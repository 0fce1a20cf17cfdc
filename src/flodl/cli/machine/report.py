"""The facts that `fdl diagnose` shows, gathered so that nothing that is missing or broken stops it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import flodl
from flodl.core import environment

from . import libtorch, store
from .builds import runs_on
from .detection import detect
from .hardware import Hardware, ask, read
from .problems import find_problems
from .torch_facts import ask_torch, capabilities

# Not read by flodl, but by what it stands on: they decide what torch and pip see.
_OTHERS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PIP_INDEX_URL",
    "VIRTUAL_ENV",
)
_GB = 1024**3

Report = dict[str, Any]


def gather(root: Path = Path("/")) -> Report:
    """Look at everything; `root` is where `proc` and `sys` are mounted."""
    hardware, place = detect(root), store.here()
    installed = version_of("torch")
    torch = ask_torch(sys.executable) if installed or libtorch.of_this_python() else None
    report: Report = {
        "context": {"mode": place.mode, "root": str(place.root)},
        "flodl": {"version": flodl.__version__, "path": str(Path(flodl.__file__).parent)},
        "system": _system(hardware, root),
        "gpus": _gpus(hardware, torch),
        "driver": {"nvidia": hardware.nvidia_driver, "rocm": hardware.rocm},
        "torch": torch,
        "builds": {"installed": place.installed(), "active": place.active()},
        "libtorch": _libtorch(place),
        "environment": environment.report([*_own_variables(), *_OTHERS]),
        "packages": _packages(),
        "extras": _extras(),
    }
    report["problems"] = [
        {"what": problem.what, "do": problem.do} for problem in find_problems(hardware, report)
    ]
    return report


def version_of(package: str) -> str | None:
    """Give the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system(hardware: Hardware, root: Path) -> dict[str, Any]:
    release = read(root / "proc/sys/kernel/osrelease")
    disk, shared = _disk(Path(".")), _disk(root / "dev/shm")
    facts: dict[str, Any] = {
        "os": platform.platform() + (" (WSL2)" if "microsoft" in release.lower() else ""),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpu": hardware.cpu,
        "threads": hardware.num_threads,
        "ram_gb": round(hardware.ram_bytes / _GB, 1) if hardware.ram_bytes else None,
        "disk_free_gb": round(disk[1] / _GB, 1) if disk else None,
        "shared_memory_gb": round(shared[0] / _GB, 2) if shared else None,
        "docker": _docker(root),
    }
    return facts


def _disk(folder: Path) -> tuple[int, int] | None:
    """Give the size of the disk that a folder is on and what is free of it, in bytes."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free


def _docker(root: Path) -> str | None:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "running inside a container"
    if not shutil.which("docker"):
        return None
    found = re.search(r"version ([\d.]+)", ask(["docker", "--version"])[0])
    return found[1] if found else None


def _gpus(hardware: Hardware, torch: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Give each GPU, and whether the torch that is installed has code for it."""
    code_for = capabilities(torch.get("code_for") or []) if torch else []
    return [
        {
            "index": gpu.index,
            "name": gpu.name,
            "vendor": gpu.vendor,
            "sm": gpu.capability or None,
            "vram_bytes": gpu.memory_bytes,
            "arch_compatible": _compatible(gpu.vendor, gpu.capability, code_for, torch),
        }
        for gpu in hardware.gpus
    ]


def _compatible(vendor: str, capability: str, code_for: list[str], torch: dict[str, Any] | None) -> bool:
    if not torch or "error" in torch:
        return False
    if vendor == "nvidia":
        return bool(torch.get("cuda")) and (not capability or runs_on(capability, code_for))
    return bool(torch.get("mps_usable") if vendor == "apple" else torch.get("hip"))


def _libtorch(place: store.Store) -> dict[str, Any] | None:
    name = libtorch.active_variant(place)
    known = {one.variant: one for one in libtorch.variants(place)}
    if name is None:
        return None
    if name not in known:
        return {"path": name, "missing": not (os.path.isabs(name) and Path(name).is_dir())}
    facts = known[name].facts()
    return {key: facts[key] for key in ("variant", "path", "version", "cuda", "archs", "source")}


def _own_variables() -> list[str]:
    """Give the variables that flodl reads: the table of `core/environment.py` has them all."""
    return re.findall(r"^\| `(\w+)`", environment.__doc__ or "", flags=re.MULTILINE)


def _requirements() -> list[str]:
    try:
        return metadata.requires("flodl") or []
    except metadata.PackageNotFoundError:
        return []


def _packages() -> dict[str, str | None]:
    """Give what flodl needs, with the versions that are there."""
    plain = (line for line in _requirements() if "extra ==" not in line)
    return {name: version_of(name) for name in map(_name_in, plain) if name}


def _extras() -> dict[str, dict[str, Any]]:
    """Give the optional parts of flodl, whether they are complete, and what is missing."""
    wanted: dict[str, list[str]] = {}
    for line in _requirements():
        found = re.search(r"extra == ['\"]([\w.-]+)['\"]", line)
        if found:
            wanted.setdefault(found[1], []).append(_name_in(line))
    missing = {extra: [name for name in names if version_of(name) is None] for extra, names in wanted.items()}
    return {extra: {"present": not names, "missing": names} for extra, names in missing.items()}


def _name_in(requirement: str) -> str:
    """Give the name in a requirement.

    >>> _name_in("torch>=2.11"), _name_in("ruff ; extra == 'test'")
    ('torch', 'ruff')
    """
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0] if found else ""
