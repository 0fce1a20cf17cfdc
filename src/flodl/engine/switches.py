"""Torch's switches that code is compiled for: read here, set to the same in the process that compiles."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch

_OF_BACKENDS = {
    "cuda.matmul": (
        "fp32_precision",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ),
    "mkldnn.matmul": ("fp32_precision",),
}


def switches_now() -> dict[str, Any]:
    """Give how the switches are set.

    >>> switches_now()["products"]
    'highest'
    """
    found = {f"{place}.{name}": getattr(part, name) for place, part, name in _parts()}
    return {"products": torch.get_float32_matmul_precision(), "dtype": torch.get_default_dtype(), **found}


def set_switches(given: dict[str, Any]) -> None:
    """Set the switches alike; one that is set so already stays untouched.

    Torch tells one that was set to its default from one that was never set, and compiles again for it.
    """
    if torch.get_float32_matmul_precision() != given["products"]:
        torch.set_float32_matmul_precision(given["products"])
    torch.set_default_dtype(given["dtype"])
    for place, part, name in _parts():
        if getattr(part, name) != given[f"{place}.{name}"]:
            setattr(part, name, given[f"{place}.{name}"])


def _parts() -> Iterator[tuple[str, Any, str]]:
    for place, names in _OF_BACKENDS.items():
        part = attrgetter(place)(torch.backends)
        yield from ((place, part, name) for name in names if hasattr(part, name))
