"""The versions, the hardware and the flags of torch that a run depends on."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy
import torch


def versions() -> dict[str, str]:
    """Return the versions of what computes the results."""
    try:
        own = version("flodl")
    except PackageNotFoundError:
        own = "unknown"
    found = {
        "flodl": own,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cast(Any, torch.backends.cudnn).version(),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def hardware(device: torch.device) -> dict[str, Any]:
    """Return the device, the CPU and the number of threads."""
    found: dict[str, Any] = {"cpu": _cpu_name(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def torch_flags() -> dict[str, Any]:
    """Return the flags of torch that change results."""
    cudnn = cast(Any, torch.backends.cudnn)
    flags: dict[str, Callable[[], Any]] = {
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "matmul_precision": torch.get_float32_matmul_precision,
        "cudnn_benchmark": lambda: cudnn.benchmark,
        "cudnn_deterministic": lambda: cudnn.deterministic,
        "initial_seed": torch.initial_seed,
    }
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, read in flags.items():
            with suppress(RuntimeError, AttributeError):  # mixed old and new settings of TF32
                found[name] = read()
    return found


@cache
def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
