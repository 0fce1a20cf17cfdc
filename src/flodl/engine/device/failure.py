"""Errors after which a device can no longer be used in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def unless_device_failed(error: BaseException) -> Iterator[None]:
    """Clean up after an error. If the device has failed, errors of the cleanup do not hide the first one.

    >>> failed = torch.AcceleratorError("CUDA error: device-side assert triggered")
    >>> with unless_device_failed(failed):
    ...     raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    """
    try:
        yield
    except torch.AcceleratorError:
        if not isinstance(error, torch.AcceleratorError):
            raise
