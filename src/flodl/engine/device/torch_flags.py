"""Torch's global flags on which recorded or compiled code depends: read, compared, set in another process.

Torch has two sets of names for some of them, and refuses to read the older names once the newer ones are
used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

_BACKEND_FLAGS = {
    "cuda.matmul": (
        "fp32_precision",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ),
    "mkldnn.matmul": ("fp32_precision",),
    "cudnn": ("benchmark", "deterministic"),
    "cudnn.conv": ("fp32_precision",),
}
_AUTOCAST_DEVICES = ("cpu", "cuda")


def matmul_precision() -> str | None:
    """Return the float32 matmul precision by its older name; None if the newer names are in use.

    >>> matmul_precision()
    'highest'
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def autocast_state(device_type: str) -> tuple[bool, torch.dtype | None]:
    """Return whether the caller's autocast is enabled, and its dtype.

    >>> autocast_state("cpu")
    (False, None)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     autocast_state("cpu")
    (True, torch.bfloat16)
    """
    is_on = torch.is_autocast_enabled(device_type)
    return is_on, torch.get_autocast_dtype(device_type) if is_on else None


def current_flags() -> dict[str, Any]:
    """Return the current flags.

    >>> current_flags()["matmul"]
    'highest'
    """
    found = {f"{path}.{name}": getattr(backend, name) for path, backend, name in _backend_flags()}
    threads = torch.get_num_threads()
    rounding = {"matmul": matmul_precision(), "convolutions": cudnn_allows_tf32()}
    casts = {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES
    }
    dtype = torch.get_default_dtype()
    return {**rounding, "dtype": dtype, "threads": threads, "casting": casts, **found}


def set_flags(flags: dict[str, Any]) -> None:
    """Set the flags; a flag that already has its value is not touched.

    Torch distinguishes a flag that was set to its default from one that was never set, and recompiles for it.
    """
    if flags["matmul"] not in (None, matmul_precision()):
        torch.set_float32_matmul_precision(flags["matmul"])
    if flags["convolutions"] not in (None, cudnn_allows_tf32()):
        torch.backends.cudnn.allow_tf32 = flags["convolutions"]
    torch.set_default_dtype(flags["dtype"])
    for kind, (is_on, dtype) in flags["casting"].items():
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_num_threads(flags["threads"])
    for path, backend, name in _backend_flags():
        if getattr(backend, name) != flags[f"{path}.{name}"]:
            setattr(backend, name, flags[f"{path}.{name}"])


@contextmanager
def matmul_tf32(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid tf32 in matmuls, and restore the setting."""
    before = matmul_precision()
    if before is not None:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
    else:
        matmul = torch.backends.cuda.matmul
        previous, matmul.fp32_precision = matmul.fp32_precision, "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        else:
            matmul.fp32_precision = previous


@contextmanager
def convolutions_without_tf32() -> Iterator[None]:
    """Forbid tf32 in convolutions, and restore the setting."""
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
    """Return whether convolutions may use tf32, by the older name; None if the newer names are in use."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return None


def _backend_flags() -> Iterator[tuple[str, Any, str]]:
    for path, names in _BACKEND_FLAGS.items():
        backend = attrgetter(path)(torch.backends)
        yield from ((path, backend, name) for name in names if hasattr(backend, name))
