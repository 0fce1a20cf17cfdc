"""Warnings about schedules that return factors, and about rates that something else has set."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

from flodl.core import log

from ._torch_habits import TorchHabits

_FACTORS_AT_FIRST = (
    "the schedule returns %g at step 0, which replaces the learning rate %g of the optimizer. A schedule "
    "returns learning rates, not factors as for torch's LambdaLR. If %g is a factor, multiply it by %g."
)
_FACTORS_LATER = (
    "the schedule rises to a learning rate of 1, in place of the optimizer's %g. A schedule returns "
    "learning rates, not factors as for torch's LambdaLR. If it returns factors, multiply them by %g."
)
_FACTORS_BY_SIZE = (
    "the schedule sets the learning rate to %g, which is %.0f times the optimizer's %g. A schedule returns "
    "learning rates, not factors as for torch's LambdaLR. If it returns factors, multiply them by %g: "
    "schedule=lambda step: %g * factor(step)."
)
_SET_ELSEWHERE = (
    "a learning rate was set to %g outside the schedule, which had set it to %g and sets it again after "
    "every update. Use only one of the two: remove the schedule, or the other scheduler or assignment. "
    "step.schedule.scale(factor) multiplies the rates of a schedule."
)
_LOADED = (
    "the state of the optimizer was loaded with a learning rate of %g, but the schedule is at step %d, where "
    "it had set %g, and continues from there. To resume, load the state of the schedule as well: "
    "call step.load_state_dict(saved) for a TrainStep, or bridge.load_state_dict(saved) for a bridge."
)


# From this multiple of the optimizer's rate on, a rate is probably a factor; from the second one on, if that
# rate is the default of an Adam.
_MANY_TIMES, _MANY_TIMES_DEFAULT = 100, 500
# Factors come close to 1, and a rate below the second number is a placeholder that any schedule replaces.
_LOW_FACTOR, _PLACEHOLDER = 0.1, 1e-7

# The schedules of torch, and those of flodl that take their place.
_IN_PLACE_OF = {
    "StepLR": "StepDecay",
    "MultiStepLR": "MultiStepLR",
    "ExponentialLR": "ExponentialLR",
    "CosineAnnealingLR": "CosineScheduler",
    "OneCycleLR": "OneCycleLR",
    "CyclicLR": "CyclicLR",
    "ReduceLROnPlateau": "PlateauScheduler",
}


def torch_scheduler_text(kind: type) -> str:
    """Return the message for a torch scheduler in place of a schedule.

    >>> import torch
    >>> torch_scheduler_text(torch.optim.lr_scheduler.StepLR)[:82]
    'StepLR is a torch scheduler, which sets the learning rates itself. Use flodl.optim'
    """
    own = _IN_PLACE_OF.get(kind.__name__)
    use = f"flodl.optim.{own}" if own else "a schedule of flodl.optim, or a function that returns the rate"
    return (
        f"{kind.__name__} is a torch scheduler, which sets the learning rates itself. Use {use} instead; "
        "schedules count updates. To keep the torch scheduler, omit schedule= and call scheduler.step() "
        "yourself: in a loop after the step, with a Trainer in a hook, on_step_end or on_epoch_end. A run "
        "that is saved needs a hook whose state_dict and load_state_dict are those of the scheduler."
    )


def warn_of_factors_at_first(lr: float, reference: float) -> bool:
    """Warn if the first rate is probably a factor, and return whether it is."""
    if lr < 1.0 or reference > lr / 10:
        return False
    log.warn(_FACTORS_AT_FIRST, lr, reference, lr, reference)
    return True


def probable_factors_from(schedule: Any, optimizer: Any, reference: float, *, first: float) -> float:
    """Return the rate at or above which a schedule probably returns factors; infinity if it never does.

    `first` is its rate at step 0. A search for a learning rate starts at that of the optimizer or far below
    it, and schedules of flodl are created with their rates. The default of an optimizer's class was not
    chosen.

    >>> import torch
    >>> optimizer = torch.optim.AdamW([torch.zeros(1)], lr=3e-4)
    >>> probable_factors_from(abs, optimizer, 3e-4, first=0.0)
    0.1
    >>> probable_factors_from(abs, optimizer, 3e-4, first=1e-7)
    inf
    """
    is_search = 0 < first < reference / 10 or math.isclose(first, reference, rel_tol=1e-3)
    if is_search or reference < _PLACEHOLDER or isinstance(schedule, TorchHabits):
        return math.inf
    times = _MANY_TIMES
    if math.isclose(reference, _default_lr(optimizer)):
        if not _is_adam(optimizer):
            return math.inf
        times = _MANY_TIMES_DEFAULT
    return max(times * reference, _LOW_FACTOR)


def warn_of_factors_by_size(lr: float, reference: float) -> None:
    """Warn that a rate is many times that of the optimizer."""
    log.warn(_FACTORS_BY_SIZE, lr, lr / reference, reference, reference, reference)


def highest_text(schedule: Any, optimizer: Any, reference: float, highest: float) -> str:
    """Return a note if a function has set higher rates than the optimizer was given, or "".

    Schedules of flodl are described when they are applied; a function is not called in advance.

    >>> import torch
    >>> highest_text(abs, torch.optim.AdamW([torch.zeros(1)], lr=3e-4), 3e-4, 0.97)
    'the function has set learning rates up to 0.97; the lr=0.0003 of the AdamW is not used'
    """
    is_given = not any(math.isclose(reference, rate) for rate in (_default_lr(optimizer), 1.0))
    is_higher = highest > reference * (1 + 1e-6)
    if isinstance(schedule, TorchHabits) or not is_higher or not is_given:
        return ""
    kind = "schedule" if callable(getattr(schedule, "lr", None)) else "function"
    return (
        f"the {kind} has set learning rates up to {highest:g}; the lr={reference:g} of the "
        f"{type(optimizer).__name__} is not used"
    )


def warn_of_factors(schedule: Any, optimizer: Any, reference: float) -> None:
    """Warn if a schedule that has risen to exactly 1 and not beyond probably returns factors.

    1 is a common peak for SGD. It contradicts a lower rate that the optimizer was given, unless that is the
    default of its class or the schedule was created with its peak. For Adam, 1 is never meant.
    """
    if reference > 0.1:
        return
    if not _is_adam(optimizer):
        is_default = math.isclose(reference, _default_lr(optimizer))
        if is_default or callable(getattr(schedule, "lr", None)):
            return
    log.warn(_FACTORS_LATER, reference, reference)


def unused_rate(
    own_rates: Sequence[float], first: float, optimizer: Any, reference: float, *, has_ratios: bool = False
) -> str:
    """Return a note if an optimizer was given a rate that none of its schedule's rates equals, or "".

    `own_rates` are those that the schedule was created with, `first` is that of step 0. The default of
    the optimizer's class was not chosen, and 1 is a common choice where only the ratios of groups matter.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
    >>> unused_rate([0.1], 0.1, optimizer, 0.05)
    'the schedule sets the learning rate, up to 0.1; the lr=0.05 of the SGD is not used'
    >>> unused_rate([0.05], 0.001, optimizer, 0.05), unused_rate([], 0.1, optimizer, 0.05)
    ('', '')
    """
    meant = (*own_rates, first, _default_lr(optimizer), 1.0)
    # An optimizer that was trained before has the rate of that training.
    if not own_rates or optimizer.state or any(math.isclose(reference, rate, rel_tol=1e-6) for rate in meant):
        return ""
    return (
        f"the schedule sets the learning rate, up to {max(own_rates):g}; the lr={reference:g} of the "
        f"{type(optimizer).__name__} is not used{', only the ratios of its groups' if has_ratios else ''}"
    )


def warn_of_other_rate(found: Any, written: Any, step: int, *, was_loaded: bool) -> bool:
    """Warn if something else has set a rate, and return whether it has; a tensor would synchronize."""
    if hasattr(found, "fill_") or hasattr(written, "fill_") or found == written:
        return False
    if was_loaded:
        log.warn(_LOADED, found, step, written)
    else:
        log.warn(_SET_ELSEWHERE, found, written)
    return True


def _is_adam(optimizer: Any) -> bool:
    return any("adam" in cls.__name__.lower() for cls in type(optimizer).__mro__)


def _default_lr(optimizer: Any) -> float:
    """Return the rate that the class of an optimizer uses if none is given, or NaN."""
    try:
        default = inspect.signature(type(optimizer)).parameters["lr"].default
    except (KeyError, TypeError, ValueError):
        return math.nan
    return float(default) if isinstance(default, int | float) else math.nan
