"""The problems that `fdl diagnose` finds, each with a remedy. Pure functions of the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flodl.core.errors import SetupError

from .builds import choose
from .hardware import Hardware

_OLDEST_TORCH = (2, 11)
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 13)


@dataclass(frozen=True)
class Problem:
    """One problem and its remedy."""

    what: str
    do: str


def find_problems(hardware: Hardware, report: dict[str, Any]) -> list[Problem]:
    """Return the problems, the most serious first.

    >>> report = {"torch": None, "system": {"python": "3.12.1"}, "environment": {}, "gpus": []}
    >>> [problem.what for problem in find_problems(Hardware("linux", "x86_64"), report)]
    ['torch is not installed']
    """
    return [
        *_torch_problems(report),
        *_package_problems(report),
        *_gpu_problems(hardware, report),
        *_system_problems(report),
    ]


def _torch_problems(report: dict[str, Any]) -> Iterator[Problem]:
    torch = report["torch"]
    if torch is None:
        yield Problem("torch is not installed", "Install the build that fits this machine: fdl setup")
    elif "error" in torch:
        yield Problem(f"torch does not work: {torch['error']}", "Reinstall it: fdl setup --here --force")
    elif _numbers(torch["version"])[:2] < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        yield Problem(
            f"torch {torch['version']} is too old; flodl requires {oldest} or later",
            "Install a newer version: fdl setup",
        )


def _package_problems(report: dict[str, Any]) -> Iterator[Problem]:
    missing = [name for name, version in report.get("packages", {}).items() if version is None]
    missing = [name for name in missing if name != "torch"]
    if missing:
        yield Problem(
            f"packages that flodl requires are not installed: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    python = _numbers(report["system"]["python"])[:2]
    if not _OLDEST_PYTHON <= python <= _NEWEST_PYTHON:
        yield Problem(
            f"Python {report['system']['python']} is not supported by flodl",
            "Create an environment with Python 3.11, 3.12 or 3.13",
        )


def _gpu_problems(hardware: Hardware, report: dict[str, Any]) -> Iterator[Problem]:
    yield from (Problem(note, "Run nvidia-smi yourself and check its output") for note in hardware.notes)
    torch = report["torch"]
    if not hardware.gpus or not torch or "error" in torch:
        return
    hidden = report["environment"].get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and (not hidden.strip() or hidden.strip().startswith("-1")):
        yield Problem(
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs", "Unset it: unset CUDA_VISIBLE_DEVICES"
        )
        return
    try:
        choice = choose(hardware)
    except SetupError as error:
        yield Problem(str(error), "")
        return
    wanted = choice.build.name
    if hardware.gpus_from("nvidia") and not torch.get("cuda") and choice.build.cuda:
        yield Problem(f"torch {torch['version']} cannot use the NVIDIA GPU", f"fdl setup --build {wanted}")
    elif hardware.gpus_from("amd") and not torch.get("hip") and wanted.startswith("rocm"):
        yield Problem(f"torch {torch['version']} cannot use the AMD GPU", f"fdl setup --build {wanted}")
    elif (torch.get("cuda") or torch.get("hip")) and not torch.get("gpu_usable"):
        yield Problem(
            f"torch {torch['version']} finds no usable GPU, but this machine has one ({choice.reason})",
            f"Update the driver, or install a build that fits it: fdl setup --build {wanted}",
        )
    elif torch.get("cuda"):
        for gpu in report["gpus"]:
            if not gpu["arch_compatible"]:
                name = f"GPU {gpu['index']}, {gpu['name']} ({gpu['sm']})"
                yield Problem(
                    f"torch {torch['version']} does not support {name}", f"fdl setup --build {wanted}"
                )


def _system_problems(report: dict[str, Any]) -> Iterator[Problem]:
    system = report["system"]
    free, shared = system.get("disk_free_gb"), system.get("shared_memory_gb")
    if free is not None and free < 1:
        yield Problem(f"the disk of this folder has {free} GB free", "Free some space before a run")
    if shared is not None and shared < 0.25:
        yield Problem(
            f"shared memory (/dev/shm) is only {shared} GB; data workers exchange batches through it",
            "Start the container with --shm-size=8g, or --ipc=host",
        )
    libtorch = report.get("libtorch")
    if libtorch and libtorch.get("missing"):
        yield Problem(
            f"the active libtorch, {libtorch['path']}, no longer exists",
            "Choose a different one: fdl libtorch activate",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)
