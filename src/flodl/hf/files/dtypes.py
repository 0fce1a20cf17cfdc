"""Types of parameters by name."""

from __future__ import annotations

import torch

from flodl.core import HFError


def parse_dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    """Return a floating-point type from its name; None and "auto" give None.

    >>> parse_dtype("bfloat16"), parse_dtype("auto")
    (torch.bfloat16, None)
    """
    if value is None or value == "auto":
        return None
    found = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype) or not found.is_floating_point or found.itemsize < 2:
        raise HFError(
            f"dtype={value!r}; expected torch.float32, torch.bfloat16, torch.float16 or torch.float64."
        )
    return found
