"""Leftovers of a loop without `TrainStep`: backward on the loss, evaluation mode, torch's schedulers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from flodl.core import StepError

from ..report import Cause, Journal


def refuse_backward(loss: Tensor) -> None:
    """Make `loss.backward()` raise an error that explains itself, instead of torch's.

    The first loss of a step is enough: a loop with a backward calls it there.

    >>> loss = Tensor([1.0])
    >>> refuse_backward(loss), loss.backward()
    Traceback (most recent call last):
    flodl.core.errors.StepError: loss.backward() was called on the loss that a TrainStep returned. ...
    """
    loss.backward = _raise_already_done  # type: ignore[method-assign]
    # Torch pickles the attributes of a tensor, too; the loss stays a plain tensor in every file.
    loss.__getstate__ = _no_state  # type: ignore[method-assign]


def _raise_already_done(*_: object, **__: object) -> None:
    raise StepError(
        "loss.backward() was called on the loss that a TrainStep returned. The step has already run backward "
        "and the update: remove loss.backward(), optimizer.step() and optimizer.zero_grad()."
    )


def _no_state() -> None:
    return None


def check_mode(model: nn.Module, journal: Journal, step: int) -> None:
    """Warn if a whole model is trained in evaluation mode, and that makes a difference."""
    for name, module in model.named_modules():
        drops = isinstance(module, _DropoutNd) and module.p > 0
        if not module.training and (drops or isinstance(module, _NormBase)):
            reason = (
                f"the model is in evaluation mode, so {name!r} ({type(module).__name__}) does not behave as "
                "in training. Call model.train() before training. If this is intentional, call "
                "model.train() first, then eval() on those modules only"
            )
            journal.warn(step, "mode", Cause.PROBABLE_MISTAKE, reason)
            return


def check_schedulers(optimizer: Optimizer, journal: Journal, step: int) -> None:
    """Warn once if one of torch's schedulers sets the learning rates that a schedule sets, too.

    It does so in place if they are tensors; otherwise the bridge of the schedule notices it.
    """
    if not any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        reason = (
            "one of torch's learning rate schedulers is attached to the optimizer, and schedule= sets the "
            "same learning rates after every update. Remove one of the two"
        )
        journal.warn(step, "schedule", Cause.PROBABLE_MISTAKE, reason)
