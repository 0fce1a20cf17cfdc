"""A loss in place of a step function is found before anything is trained."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.loss import _Loss

from flodl.core import TrainError


def check_step_function(step_fn: Any, model: nn.Module) -> None:
    """Raise if the step function is a loss, a class of modules or the model itself."""
    if step_fn is model:
        raise TrainError(_text(f"the model itself, {type(model).__name__}", "loss_of"))
    if isinstance(step_fn, _Loss):
        raise TrainError(_text(f"{type(step_fn).__name__}(), a loss", "criterion"))
    if isinstance(step_fn, type) and issubclass(step_fn, nn.Module):
        raise TrainError(_text(f"the class {step_fn.__name__}", f"{step_fn.__name__}()"))
    if getattr(step_fn, "__module__", None) == "torch.nn.functional":
        raise TrainError(_text(f"torch's {step_fn.__name__}", step_fn.__name__))


def _text(what: str, loss: str) -> str:
    return (
        f"the step function is {what}. It takes the model and a batch, and returns the loss: "
        f"def step_fn(model, x, y): return {loss}(model(x), y)."
    )
