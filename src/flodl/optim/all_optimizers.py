"""The parameters of every optimizer in the program."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def in_any_optimizer() -> set[Tensor]:
    """Return the parameters of every optimizer of the program; this takes some milliseconds.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> weight in in_any_optimizer()
    True
    """
    from torch.optim import Optimizer

    is_frozen = gc.get_freeze_count() > 0
    # Frozen objects are not listed.
    gc.unfreeze()
    try:
        found = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    finally:
        if is_frozen:
            gc.freeze()
    groups = [group for one in found for group in getattr(one, "param_groups", ())]
    return {parameter for group in groups for parameter in group["params"]}
