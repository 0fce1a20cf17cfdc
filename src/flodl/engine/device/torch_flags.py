"""Torch's switches that code is recorded or compiled for: read, compared, and set alike in another process.

Torch has two sets of names for some of them, and refuses to read the older ones once the newer were used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    "cudnn": ("benchmark", "deterministic"),
    "cudnn.conv": ("fp32_precision",),
}
_CASTING = ("cpu", "cuda")


def matmul_precision() -> str | None:
    """Give how float32 products are rounded, by the older name; None where the newer ones are in use.

    >>> matmul_precision()
    'highest'
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def autocast_state(device_type: str) -> tuple[bool, torch.dtype | None]:
    """Give what an autocast of the caller's asks for.

    >>> autocast_state("cpu")
    (False, None)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     autocast_state("cpu")
    (True, torch.bfloat16)
    """
    is_on = torch.is_autocast_enabled(device_type)
    return is_on, torch.get_autocast_dtype(device_type) if is_on else None


def current_flags() -> dict[str, Any]:
    """Give how the switches are set.

    >>> current_flags()["products"]
    'highest'
    """
    found = {f"{place}.{name}": getattr(part, name) for place, part, name in _parts()}
    threads = torch.get_num_threads()
    rounding = {"products": matmul_precision(), "convolutions": cudnn_allows_tf32()}
    casts = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _CASTING}
    dtype = torch.get_default_dtype()
    return {**rounding, "dtype": dtype, "threads": threads, "casting": casts, **found}


def set_flags(given: dict[str, Any]) -> None:
    """Set the switches alike; one that is set so already stays untouched.

    Torch tells one that was set to its default from one that was never set, and compiles again for it.
    """
    if given["products"] not in (None, matmul_precision()):
        torch.set_float32_matmul_precision(given["products"])
    if given["convolutions"] not in (None, cudnn_allows_tf32()):
        torch.backends.cudnn.allow_tf32 = given["convolutions"]
    torch.set_default_dtype(given["dtype"])
    for kind, (is_on, dtype) in given["casting"].items():
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_num_threads(given["threads"])
    for place, part, name in _parts():
        if getattr(part, name) != given[f"{place}.{name}"]:
            setattr(part, name, given[f"{place}.{name}"])


@contextmanager
def matmul_tf32(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid tf32 in matrix products, and put the setting back."""
    before = matmul_precision()
    if before is not None:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
    else:
        matmul = torch.backends.cuda.matmul
        kept, matmul.fp32_precision = matmul.fp32_precision, "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        else:
            matmul.fp32_precision = kept


@contextmanager
def convolutions_without_tf32() -> Iterator[None]:
    """Forbid tf32 in convolutions, and put the setting back."""
    cudnn: Any = torch.backends.cudnn
    newer = cudnn_allows_tf32() is None
    part, name = (cudnn.conv, "fp32_precision") if newer else (cudnn, "allow_tf32")
    before = getattr(part, name)
    setattr(part, name, "ieee" if newer else False)
    try:
        yield
    finally:
        setattr(part, name, before)


def cudnn_allows_tf32() -> bool | None:
    """Say whether convolutions may use tf32, by the older name; None where the newer ones are in use."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return None


def _parts() -> Iterator[tuple[str, Any, str]]:
    for place, names in _OF_BACKENDS.items():
        part = attrgetter(place)(torch.backends)
        yield from ((place, part, name) for name in names if hasattr(part, name))
