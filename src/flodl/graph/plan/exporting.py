"""Whether a call is recorded into a program that has no memory: an export or a trace."""

from __future__ import annotations

import torch


def is_exporting() -> bool:
    """Return whether `torch.export` or `torch.jit.trace` records this call.

    >>> is_exporting()
    False
    """
    # Up to torch 2.11, `torch.compiler.is_exporting()` is true while Dynamo compiles.
    return torch.compiler._is_exporting_flag or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
