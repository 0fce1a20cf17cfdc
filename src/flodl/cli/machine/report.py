"""Collect the facts that `fdl diagnose` shows; missing or broken parts do not stop it."""

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

from . import libtorch
from .builds import runs_on
from .detection import detect
from .hardware import Hardware, read_or_empty, run_tool
from .problems import find_problems
from .store import Store, find_store
from .torch_facts import compute_capabilities, query_torch

# Not read by flodl, but by torch and pip.
_OTHER_VARIABLES = (
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
    """Return the whole report; `root` is the folder with `proc` and `sys`."""
    hardware, store = detect(root), find_store()
    installed = version_of("torch")
    torch = query_torch(sys.executable) if installed or libtorch.of_this_python() else None
    report: Report = {
        "context": {"mode": store.mode, "root": str(store.root)},
        "flodl": {"version": flodl.__version__, "path": str(Path(flodl.__file__).parent)},
        "system": _system(hardware, root),
        "gpus": _gpus(hardware, torch),
        "driver": {"nvidia": hardware.nvidia_driver, "rocm": hardware.rocm},
        "torch": torch,
        "builds": {"installed": store.installed(), "active": store.active()},
        "libtorch": _libtorch(store),
        "environment": environment.report([*_own_variables(), *_OTHER_VARIABLES]),
        "packages": _packages(),
        "extras": _extras(),
    }
    report["problems"] = [
        {"what": problem.what, "do": problem.do} for problem in find_problems(hardware, report)
    ]
    return report


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system(hardware: Hardware, root: Path) -> dict[str, Any]:
    release = read_or_empty(root / "proc/sys/kernel/osrelease")
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
    """Return the total and free bytes of the disk with a folder."""
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
    found = re.search(r"version ([\d.]+)", run_tool(["docker", "--version"])[0])
    return found[1] if found else None


def _gpus(hardware: Hardware, torch: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return each GPU and whether the installed torch supports it."""
    supported = compute_capabilities(torch.get("code_for") or []) if torch else []
    return [
        {
            "index": gpu.index,
            "name": gpu.name,
            "vendor": gpu.vendor,
            "sm": gpu.capability or None,
            "vram_bytes": gpu.memory_bytes,
            "arch_compatible": _compatible(gpu.vendor, gpu.capability, supported, torch),
        }
        for gpu in hardware.gpus
    ]


def _compatible(vendor: str, capability: str, supported: list[str], torch: dict[str, Any] | None) -> bool:
    if not torch or "error" in torch:
        return False
    if vendor == "nvidia":
        return bool(torch.get("cuda")) and (not capability or runs_on(capability, supported))
    return bool(torch.get("mps_usable") if vendor == "apple" else torch.get("hip"))


def _libtorch(store: Store) -> dict[str, Any] | None:
    name = libtorch.active_variant(store)
    known = {one.variant: one for one in libtorch.variants(store)}
    if name is None:
        return None
    if name not in known:
        return {"path": name, "missing": not (os.path.isabs(name) and Path(name).is_dir())}
    facts = known[name].facts()
    return {key: facts[key] for key in ("variant", "path", "version", "cuda", "archs", "source")}


def _own_variables() -> list[str]:
    """Return the variables that flodl reads, from the table in `core/environment.py`."""
    return re.findall(r"^\| `(\w+)`", environment.__doc__ or "", flags=re.MULTILINE)


def _requirements() -> list[str]:
    try:
        return metadata.requires("flodl") or []
    except metadata.PackageNotFoundError:
        return []


def _packages() -> dict[str, str | None]:
    """Return the packages that flodl requires, with the installed versions."""
    plain = (line for line in _requirements() if "extra ==" not in line)
    return {name: version_of(name) for name in map(_package_name, plain) if name}


def _extras() -> dict[str, dict[str, Any]]:
    """Return the extras of flodl, whether they are installed, and which packages are missing."""
    required: dict[str, list[str]] = {}
    for line in _requirements():
        found = re.search(r"extra == ['\"]([\w.-]+)['\"]", line)
        if found:
            required.setdefault(found[1], []).append(_package_name(line))
    missing = {
        extra: [name for name in names if version_of(name) is None] for extra, names in required.items()
    }
    return {extra: {"present": not names, "missing": names} for extra, names in missing.items()}


def _package_name(requirement: str) -> str:
    """Return the package name in a requirement.

    >>> _package_name("torch>=2.11"), _package_name("ruff ; extra == 'test'")
    ('torch', 'ruff')
    """
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0] if found else ""
