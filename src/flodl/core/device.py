"""Parsing a device that a user named, and checking that it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import FlodlError

if TYPE_CHECKING:
    import torch


def parse_device(
    value: torch.device | str | int,
    *,
    error: type[FlodlError],
    advice: str,
    advice_without_cuda: str,
    label: str = "",
) -> torch.device:
    """Return the device that `value` names; a CUDA device always has an index.

    An int is the index of a CUDA device, and "cuda" is the current one. Raises `error` if `value` is not a
    device, or is a CUDA device that this machine does not have. The message starts with `label`.

    >>> from flodl.core import TrainError
    >>> parse_device("gpu", error=TrainError, advice="Use 'cpu'.", advice_without_cuda="")
    Traceback (most recent call last):
    flodl.core.errors.TrainError: device='gpu' is not a device. Use 'cpu'.
    """
    import torch

    label = label or f"device={str(value) if isinstance(value, torch.device) else value!r}"
    try:
        device = torch.device("cuda", value) if type(value) is int else torch.device(value)
    except (RuntimeError, TypeError) as cause:
        raise error(f"{label} is not a device. {advice}") from cause
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        why = "finds no CUDA device" if torch.version.cuda else "is built without CUDA"
        raise error(f"{label}: torch {torch.__version__} {why}. {advice_without_cuda}")
    index = torch.cuda.current_device() if device.index is None else device.index
    count = torch.cuda.device_count()
    if index >= count:
        raise error(f"{label}: the CUDA devices of this machine are 0 to {count - 1}. {advice}")
    return torch.device("cuda", index)
