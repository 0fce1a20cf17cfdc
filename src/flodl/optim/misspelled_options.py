"""Notices options of parameter groups that an optimizer does not have, because they are misspelled."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Names of other libraries, and those of torch's optimizers.
_ELSEWHERE = {
    "learningrate": "lr",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "l2": "weight_decay",
    "epsilon": "eps",
}
# Names that torch's schedulers store in a group.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"})
# Custom names, such as "lr_scale", are common: only one that is nearly an option is a mistake.
_SIMILAR = 0.85


def misspelled_option(optimizer: Optimizer) -> str:
    """Return an error about an option of a group that is nearly one of the optimizer, or "".

    Torch ignores options that an optimizer does not have.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> misspelled_option(torch.optim.SGD([{"params": [weight], "wd": 0.1}], lr=0.1))[:61]
    "group 0 of the optimizer has the option 'wd', which SGD does "
    >>> misspelled_option(torch.optim.SGD([{"params": [weight], "lr_scale": 0.1}], lr=0.1))
    ''
    """
    known = {_plain(name): name for name in optimizer.defaults}
    for index, group in enumerate(optimizer.param_groups):
        for name in group:
            if name in optimizer.defaults or name in _OF_SCHEDULERS or not isinstance(name, str):
                continue
            if meant := _meant(_plain(name), known):
                return (
                    f"group {index} of the optimizer has the option {name!r}, which "
                    f"{type(optimizer).__name__} does not have and ignores. Did you mean {meant!r}?"
                )
    return ""


def _meant(name: str, known: dict[str, str]) -> str:
    """Return the option that was probably meant, or ""."""
    meant = _ELSEWHERE.get(name, "")
    if _plain(meant) in known:
        return meant
    close = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
    return known[close[0]] if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
