"""Frozen parameters and the training mode of each module: listed, preserved and restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from flodl.core import TrainError
from flodl.engine import has_chosen_modes, switch_modes
from flodl.graph import is_kept_in_eval, set_kept_in_eval


def modes_of(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of frozen parameters, of modules in evaluation mode, and of those kept in it."""
    modules = list(model.named_modules())
    return {
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "evaluating": [name for name, module in modules if not module.training],
        "stilled": [name for name, module in modules if is_kept_in_eval(module)],
    }


def restore_modes(model: nn.Module, modes: Mapping[str, Any]) -> None:
    """Restore the result of `modes_of`."""
    frozen, evaluating, stilled = (set(modes[kind]) for kind in ("frozen", "evaluating", "stilled"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
            parameter.grad = None
    for name, module in model.named_modules():
        module.training = name not in evaluating
        set_kept_in_eval(module, name in stilled)


def check_still_evaluating(model: nn.Module) -> None:
    """Raise if the step function switched the model to training mode, and that makes a difference."""
    for name, module in model.named_modules():
        if module.training and _depends_on_mode(module):
            raise TrainError(
                "the step function switches the model to training mode, so the evaluation would run "
                f"{type(module).__name__} as in training. Remove model.train() from the step function: the "
                "trainer switches the mode before each epoch and each evaluation.",
                path=name,
            )


def _depends_on_mode(module: nn.Module) -> bool:
    """Return whether a module computes something different in training mode, as far as can be seen."""
    if isinstance(module, _NormBase):
        return True
    rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
    if isinstance(rate, float) and rate > 0:
        return True
    if type(module).__module__.partition(".")[0] in ("torch", "flodl"):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


def preserve_modes(model: nn.Module) -> AbstractContextManager[None]:
    """Restore the mode of every module when the context ends, if all are in evaluation mode now."""
    return nullcontext() if model.training or has_chosen_modes(model) else restored_modes(model)


def note_of_chosen(model: nn.Module) -> str:
    """Return a note if parts of a model in evaluation mode train, and the mode of the others matters, or "".

    A part that was added to a model in evaluation mode, such as a new head, looks the same as a chosen one.
    """
    if not has_chosen_modes(model):
        return ""
    named = [(name, module) for name, module in model.named_modules() if name]
    training = next(name for name, module in named if module.training)
    still = [(name, module) for name, module in named if not module.training and _depends_on_mode(module)]
    if not still:
        return ""
    return (
        f"the model is in evaluation mode and {training!r} is in training mode, and both stay that way: "
        f"{still[0][0]!r} ({type(still[0][1]).__name__}) does not behave as it does in training. To "
        "train the whole model in training mode, call model.train() before the run"
    )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation mode without gradients, and restore its mode afterwards."""
    with restored_modes(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every module when the context ends; `train()`, which it may override, is called."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        switch_modes(before)
