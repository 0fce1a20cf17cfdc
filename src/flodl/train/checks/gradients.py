"""Finds parameters that receive a gradient but are in no optimizer, from the autograd history of one loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.optim.all_optimizers import in_any_optimizer

MAX_NAMES = 3


def check_gradients(model: nn.Module, optimizer: Optimizer, step_fn: Callable[..., Any], loss: Tensor) -> str:
    """Raise if the optimizer has other parameters in place of some of the model; return a warning, or "".

    The model itself must be what is trained. A part of it that is not in the optimizer may be meant to stay
    as it is. It is not if the optimizer has, in addition, parameters that are neither in the model nor used
    by the loss: they belong to a module that was replaced, or to another model. A parameter outside the model
    that is used by the loss, such as one of the loss itself, and is in no optimizer causes the warning.
    """
    own = {parameter: name for name, parameter in model.named_parameters()}
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    reached = set(_leaves(loss))
    trainable = [parameter for parameter in own if parameter.requires_grad]
    if trainable and trained & reached and not own.keys() & (trained | reached):
        return _other_model(trainable, [one for one in trained if one.requires_grad])
    untrained = [name for parameter, name in own.items() if parameter in reached and parameter not in trained]
    stale = [one for one in trained if one.requires_grad and one not in own and one not in reached]
    if untrained and stale:
        raise TrainError(
            f"the optimizer does not have {_listed(untrained)} of the model, and has {len(stale)} "
            f"{'parameter' if len(stale) == 1 else 'parameters'} that the model does not have: it was built "
            "before a module was replaced, or for a different model. Build it after the model is complete, "
            "for example with optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3). Nothing was "
            "trained.",
            path=untrained[0],
        )
    outside = [
        one for one in reached if isinstance(one, nn.Parameter) and one not in own and one not in trained
    ]
    if outside:
        # Another trainer may train them, as in a GAN.
        elsewhere = in_any_optimizer()
        outside = [one for one in outside if one not in elsewhere]
    return _warning(outside, step_fn) if outside else ""


def _other_model(trainable: list[nn.Parameter], trained: list[Tensor]) -> str:
    """Raise if a copy of the model is trained in its place; return a warning if it is another module."""
    what = (
        "no parameter of the trainer's model is in the optimizer, and the loss uses none: the step function "
        "trains a different module"
    )
    advice = "Pass the module that is trained to the trainer, and use the first argument of the step function"
    if sorted(one.shape for one in trainable) == sorted(one.shape for one in trained):
        raise TrainError(
            f"{what} of the same shapes, such as a global one. Evaluations and saves would contain a model "
            f"that nothing trains. {advice}. Nothing was trained."
        )
    return f"{what}, which evaluations and saves do not contain. {advice}, or freeze the model."


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors for which a backward of the loss would compute a gradient."""
    waiting, known = [loss.grad_fn], {None, loss.grad_fn}
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        following = {inner for inner, _ in node.next_functions} - known
        known |= following
        waiting += following


def _warning(outside: Sequence[Tensor], step_fn: Callable[..., Any]) -> str:
    names = _names_outside(step_fn)
    shown = sorted(names.get(one, f"a parameter of shape {tuple(one.shape)}") for one in outside)
    receives, them, are = ("receives", "it", "is") if len(shown) == 1 else ("receive", "them", "are")
    return (
        f"{_listed(shown)}, which the step function uses, {receives} a gradient and {are} in no "
        f"optimizer, so nothing trains {them}. Pass {them} to the optimizer too, or set requires_grad=False."
    )


def _names_outside(step_fn: Callable[..., Any]) -> dict[Tensor, str]:
    """Return the names of the parameters of modules that a step function uses."""
    function = getattr(step_fn, "__func__", step_fn)
    reached: dict[str, Any] = {"self": getattr(step_fn, "__self__", step_fn)}
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        reached |= {**variables.globals, **variables.nonlocals}
    reached |= getattr(reached["self"], "__dict__", {})
    found: dict[Tensor, str] = {}
    for name, value in reached.items():
        if isinstance(value, nn.Parameter):
            found.setdefault(value, name)
        elif isinstance(value, nn.Module):
            for inner, parameter in value.named_parameters():
                found.setdefault(parameter, f"{name}.{inner}")
    return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
