"""Detect AMD GPUs from `/sys`, without any ROCm tool."""

from __future__ import annotations

import re
from pathlib import Path

from .hardware import Gpu, read_or_empty

_NODES = "sys/class/kfd/kfd/topology/nodes"


def probe(root: Path) -> tuple[Gpu, ...]:
    """Return the GPUs that ROCm can use."""
    nodes = sorted((root / _NODES).glob("[0-9]*"), key=lambda node: int(node.name))
    gpus: list[Gpu] = []
    for node in nodes:
        target = _architecture(_properties(node / "properties").get("gfx_target_version", 0))
        if target:  # CPUs are nodes too, without a target
            name = read_or_empty(node / "name") or "AMD GPU"
            gpus.append(Gpu(len(gpus), name, "amd", target, _memory_bytes(node)))
    return tuple(gpus)


def rocm_version(root: Path) -> str | None:
    """Return the version of ROCm on this system, or None."""
    return read_or_empty(root / "opt/rocm/.info/version").partition("-")[0] or None


def _properties(path: Path) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in re.findall(r"^(\w+) (\d+)$", read_or_empty(path), flags=re.MULTILINE)
    }


def _architecture(number: int) -> str:
    """Return the name of an architecture from the driver's number.

    >>> _architecture(90402), _architecture(90010), _architecture(110001), _architecture(0)
    ('gfx942', 'gfx90a', 'gfx1101', '')
    """
    major, minor, stepping = number // 10000, number // 100 % 100, number % 100
    return f"gfx{major}{minor:x}{stepping:x}" if number else ""


def _memory_bytes(node: Path) -> int | None:
    banks = (node / "mem_banks").glob("*/properties")
    return sum(_properties(bank).get("size_in_bytes", 0) for bank in banks) or None
