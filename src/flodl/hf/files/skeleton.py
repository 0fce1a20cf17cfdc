"""Building a model without values: on the meta device, and without initialization."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _SkipInitialization(TorchFunctionMode):
    """Skip the functions of `torch.nn.init`.

    On the meta device they have no effect, but random ones import the compiler, which takes over a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Create tensors without values in this block.

    >>> with without_values():
    ...     layer = torch.nn.Linear(2, 3)
    >>> layer.weight.device
    device(type='meta')
    """
    with torch.device("meta"), _SkipInitialization():
        yield
