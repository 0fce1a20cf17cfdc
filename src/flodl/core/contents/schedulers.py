"""The settings of a torch LR scheduler, without its progress."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

# What training changes, and what follows from the settings of the optimizer.
_PROGRESS = frozenset(
    {"T_cur", "T_i", "base_lrs", "best", "cooldown_counter", "default_min_lr", "last_epoch", "mode_worse"}
    | {"num_bad_epochs", "optimizer", "verbose"}
)
# Settings that a scheduler keeps under a private name.
_PRIVATE = ("_schedulers", "_milestones", "_schedule_phases", "_anneal_func_type", "_scale_fn_custom")


def is_scheduler(value: Any) -> bool:
    """Return whether a value is a torch LR scheduler; one of flodl is a plain object."""
    module = sys.modules.get("torch.optim.lr_scheduler")
    return module is not None and isinstance(value, module.LRScheduler)


def scheduler_settings(stored: Mapping[str, Any], *, is_own: bool) -> dict[str, Any]:
    """Return the settings among the attributes of a scheduler; one of the user, `is_own`, may hide its own.

    >>> scheduler_settings({"gamma": 0.5, "last_epoch": 3, "_last_lr": [0.1]}, is_own=False)
    {'gamma': 0.5}
    """
    found: dict[str, Any] = {}
    for name, item in stored.items():
        is_hidden = name.startswith("_") and name not in _PRIVATE
        if name in _PROGRESS or (is_hidden and not (is_own and name not in _INTERNAL)):
            continue
        found[name.lstrip("_") if name in _PRIVATE else name] = _readable(item)
    return found


# The private attributes of every scheduler of torch.
_INTERNAL = frozenset({"_get_lr_called_within_step", "_is_initial", "_last_lr", "_step_count"})


def _readable(item: Any) -> Any:
    """Return milestones as a list, and several schedulers by their numbers, so that a change is named."""
    if isinstance(item, Counter):
        return sorted(item.elements())
    if isinstance(item, list | tuple) and any(map(is_scheduler, item)):
        return dict(enumerate(item))
    return item
