"""Leftovers of other loops: backward on the loss, a loss that is unpacked, evaluation mode, schedulers."""

from __future__ import annotations

import sys

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import SGD, Optimizer

from flodl.core import StepError
from flodl.core.usage.tracebacks import hides_own_frames
from flodl.optim import ScheduleBridge
from flodl.optim.schedule import StepSchedule

from ..errors import StepCallError
from ..modes import has_chosen_modes
from ..report import Cause, Journal

# A rate of 0 for fewer updates may be intentional.
_MIN_UPDATES = 100


def explain_loss(loss: Tensor) -> None:
    """Make `loss.backward()` and `loss, values = …` raise errors that explain themselves, instead of torch's.

    The first loss of a step in a process is enough: a loop with such a mistake makes it there.

    >>> loss = Tensor([1.0])
    >>> explain_loss(loss), loss.backward()
    Traceback (most recent call last):
    flodl.core.errors.StepError: loss.backward() was called on the loss that a TrainStep returned. ...
    """
    loss.backward = _raise_already_done  # type: ignore[method-assign]
    # Torch asks for it when a tensor is iterated.
    loss.dim = _dim_unless_unpacked  # type: ignore[method-assign]
    # Torch pickles the attributes of a tensor, too; the loss stays a plain tensor in every file.
    loss.__getstate__ = _no_state  # type: ignore[method-assign]


@hides_own_frames
def _raise_already_done(*_: object, **__: object) -> None:
    raise StepError(
        "loss.backward() was called on the loss that a TrainStep returned. The step has already run backward "
        "and the update: remove loss.backward(), optimizer.step() and optimizer.zero_grad()."
    )


def _dim_unless_unpacked() -> int:
    if sys._getframe(1).f_code is getattr(Tensor.__iter__, "__code__", None):
        raise StepCallError(
            "the result of a step was unpacked, as in `loss, values = step(x, y)`. A step returns the loss "
            "alone, a tensor with one number: write loss = step(x, y). What the step function returns with "
            "the loss is in step.values; for a trainer, in trainer.train_step.values."
        )
    return 0


def _no_state() -> None:
    return None


def check_mode(model: nn.Module, journal: Journal, step: int, *, was_training: bool) -> None:
    """Warn if a whole model is trained in evaluation mode, and that makes a difference.

    If it `was_training` before, the batch may be meant for an evaluation, which makes a difference for any
    model.
    """
    for name, module in model.named_modules():
        drops = isinstance(module, _DropoutNd) and module.p > 0
        if not module.training and (drops or isinstance(module, _NormBase)):
            reason = (
                f"the model is in evaluation mode, so {name!r} ({type(module).__name__}) does not behave as "
                "in training. Call model.train() before training. A step always trains: to evaluate, call "
                "the model without it. If this is intentional, call "
                "model.train() first, then eval() on those modules only"
            )
            journal.warn(step, "mode", Cause.PROBABLE_MISTAKE, reason)
            return
    if was_training and not has_chosen_modes(model):
        reason = (
            "the model was in training mode until now and is in evaluation mode in this call, which trains "
            "it all the same. To evaluate it, call it without the step: with torch.no_grad(): model(x). To "
            "train it, call model.train() first"
        )
        journal.warn(step, "mode", Cause.PROBABLE_MISTAKE, reason)


def check_schedulers(optimizer: Optimizer, journal: Journal, step: int) -> None:
    """Warn once if one of torch's schedulers sets the learning rates that a schedule sets, too.

    It does so in place if they are tensors; otherwise the bridge of the schedule notices it.
    """
    if not any(isinstance(group.get("lr"), Tensor) for group in optimizer.param_groups):
        return
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        reason = (
            "one of torch's learning rate schedulers is attached to the optimizer, and schedule= sets the "
            "same learning rates after every update. Remove one of the two"
        )
        journal.warn(step, "schedule", Cause.PROBABLE_MISTAKE, reason)


def check_rate(bridge: ScheduleBridge, journal: Journal, step: int) -> None:
    """Warn if the learning rate has been 0 for half of all updates, as with a schedule written in epochs."""
    schedule, now = bridge.schedule, bridge.current_step
    if now < _MIN_UPDATES or bridge.lr_scale == 0 or not isinstance(schedule, StepSchedule):
        return
    if any(map(schedule.lr, range(now // 2, now + 1))):
        return
    first = next((update for update in range(now // 2, -1, -1) if schedule.lr(update)), -1) + 1
    if first:
        reason = (
            f"the learning rate has been 0 since update {first}, so the model is no longer learning. "
            f"Schedules count updates, not epochs: set the length of {schedule!r} to the total number of "
            "updates"
        )
        journal.warn(step, "schedule", Cause.PROBABLE_MISTAKE, reason)


def check_restarted(optimizer: Optimizer, journal: Journal) -> None:
    """Warn if an optimizer continues from a loaded state, and the schedule starts from the beginning.

    An optimizer that was trained in this program usually has gradients: its new schedule is meant to start.
    """
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    if not steps or any(one.grad is not None for group in optimizer.param_groups for one in group["params"]):
        return
    if (updates := int(steps[0])) > 0:
        reason = (
            f"the optimizer continues after {updates} updates, but the schedule starts from the beginning. "
            "To continue it too, save step.state_dict() with the other states, and load it after the "
            "TrainStep is created"
        )
        journal.warn(0, "schedule", Cause.PROBABLE_MISTAKE, reason)


def check_continued(optimizer: Optimizer, updates: int, journal: Journal, step: int) -> None:
    """Warn if a step continues after some updates with an optimizer whose state was not loaded."""
    if any(optimizer.state.values()) or not _keeps_state(optimizer):
        return
    kind = type(optimizer).__name__
    reason = (
        f"the loaded state continues after {updates} updates, but the {kind} has no state, so its moments "
        "start from zero. Save optimizer.state_dict() together with step.state_dict(), and load it into the "
        "new optimizer before the first step"
    )
    journal.warn(step, "optimizer", Cause.PROBABLE_MISTAKE, reason)


def _keeps_state(optimizer: Optimizer) -> bool:
    """Return whether updates leave a state in an optimizer; SGD without momentum has none.

    >>> from torch.optim import Adagrad
    >>> weight = nn.Parameter(Tensor([1.0]))
    >>> optimizers = SGD([weight], lr=0.1), SGD([weight], lr=0.1, momentum=0.9), Adagrad([weight])
    >>> [_keeps_state(one) for one in optimizers]
    [False, True, True]
    """
    is_torch = type(optimizer).__module__.startswith("torch.optim")
    if is_torch and not isinstance(optimizer, SGD):
        return True
    return any("betas" in group or group.get("momentum") for group in optimizer.param_groups)


def schedule_note(bridge: ScheduleBridge | None) -> str:
    """Return a note if a schedule's metric was never observed, or on the rates of a function; else ""."""
    if bridge is None:
        return ""
    if not bridge.is_idle:
        return bridge.highest_note
    return (
        f"{type(bridge.watcher).__name__} has not observed a metric yet, so it has not changed the learning "
        "rate; step.schedule.observe(metric) passes one, once per epoch"
    )
