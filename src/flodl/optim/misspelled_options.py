"""Notices options of parameter groups that an optimizer does not have, because they are misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
# The options of torch's optimizers that are set for a group.
_OF_TORCH = (
    *("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize"),
    *("foreach", "fused", "capturable", "differentiable", "alpha", "centered", "rho", "lambd", "t0"),
    *("lr_decay", "initial_accumulator_value", "momentum_decay", "decoupled_weight_decay", "etas"),
    *("step_sizes", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size"),
    *("line_search_fn", "ns_coefficients", "ns_steps", "adjust_lr_fn", "beta2_decay", "d", "param_names"),
)
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


def misspelled_name(name: Any, others: Sequence[str] = ()) -> str:
    """Return the option that a name was probably meant to be, whatever the optimizer will be, or "".

    A name of the `others` is accepted: an optimizer of your own may have options of its own.

    >>> misspelled_name("learning_rate"), misspelled_name("weight_deacy"), misspelled_name("lr_scale")
    ('lr', 'weight_decay', '')
    """
    if not isinstance(name, str) or name in _OF_TORCH or name in _OF_SCHEDULERS or name in others:
        return ""
    return _meant(_plain(name), {_plain(one): one for one in _OF_TORCH})


def _meant(name: str, known: dict[str, str]) -> str:
    """Return the option that was probably meant, or ""."""
    meant = _ELSEWHERE.get(name, "")
    if _plain(meant) in known:
        return meant
    close = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
    return known[close[0]] if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
