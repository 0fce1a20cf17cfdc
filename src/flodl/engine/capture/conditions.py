"""Where steps are recorded, and how a batch looks to a recording."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..batch.tree import static_copy
from ..program.runner import Micro


def can_record(device: torch.device) -> bool:
    """Return whether steps on a device are recorded."""
    return device.type == "cuda"


def as_recorded(micro: Micro) -> Micro:
    """Return a micro-batch as a recording reads it: a copy without history, in which no elements overlap.

    Code compiled for the batch itself does not fit the copy if the batch contains an expanded tensor, a
    conjugated view or a tensor created in inference mode: torch's guards check strides and dispatch keys.
    """
    return replace(micro, batch=static_copy(micro.batch))
