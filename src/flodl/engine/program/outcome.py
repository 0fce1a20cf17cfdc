"""The validated result of a step function, and the joined results of the pieces of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core import StepError
from flodl.core.formats import a_type

from ..errors import NoLoss

Weight = float | Tensor


@dataclass(frozen=True)
class Outcome:
    """The result of a micro-batch: its loss and the named values of the step function."""

    loss: Tensor
    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class Part:
    """The outcome of one piece of a batch, its share of the real samples, and its number of rows."""

    outcome: Outcome
    weight: Weight
    num_rows: int


def joined(parts: Sequence[Part]) -> Outcome:
    """Join the outcomes of pieces into the outcome of the whole batch.

    >>> def piece(rows):
    ...     rows = torch.tensor(rows)
    ...     return Part(Outcome(rows.mean(), {"rows": rows}), len(rows) / 3, len(rows))
    >>> joined([piece([1.0, 2.0]), piece([6.0])])
    Outcome(loss=tensor(3.), values={'rows': tensor([1., 2., 6.])})
    """
    losses = [part.outcome.loss for part in parts]
    loss = torch.stack([weighed(one, part.weight) for one, part in zip(losses, parts)]).sum()
    names = dict.fromkeys(name for part in parts for name in part.outcome.values)
    values = {name: _value(name, parts) for name in names}
    return Outcome(loss.to(losses[0].dtype), values)


def weighed(value: Tensor, weight: Weight) -> Tensor:
    """Return a value times its weight, which is a number or a tensor on the device."""
    if isinstance(weight, Tensor):
        # A weight in half precision would be inaccurate.
        weight = weight.to(value.device, torch.promote_types(value.dtype, torch.float32))
    return value * weight


def _value(name: str, parts: Sequence[Part]) -> Tensor:
    """Join one value: concatenate rows, else take the weighted mean, or the last one if the shapes differ."""
    named = [part for part in parts if name in part.outcome.values]
    values = [part.outcome.values[name] for part in named]
    if all(value.dim() > 0 and len(value) == part.num_rows for value, part in zip(values, named)):
        return torch.cat(values) if len({value.shape[1:] for value in values}) == 1 else values[-1]
    if len({value.shape for value in values}) > 1:
        return values[-1]
    total = torch.stack([weighed(value, part.weight) for value, part in zip(values, named)]).sum(0)
    if len(named) == len(parts):
        return total
    share = sum(part.weight for part in named)
    return total / (share.to(total.device, total.dtype) if isinstance(share, Tensor) else share)


def outcome_of(given: Any, *, needs_gradient: bool = True) -> Outcome:
    """Read what a step function returned, or raise an error that says what it should return.

    >>> outcome_of(torch.tensor([2.0]), needs_gradient=False)
    Outcome(loss=tensor(2.), values={})
    """
    loss, values = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if loss is None:
        raise NoLoss(
            "the step function returned None in place of the loss. Return one scalar loss, or "
            "(loss, {name: value})."
        )
    if isinstance(loss, CoroutineType):
        loss.close()  # else Python warns that it was never awaited
        raise StepError(
            "the step function returned a coroutine, which is not a loss: calling an async function runs "
            "none of its code. Write a plain function: def step(model, …)."
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{a_type(loss)}"
        raise StepError(
            f"the step function returned {what}. Return one scalar loss, or (loss, {{name: value}})."
            f"{_hint_for(loss, values)}"
        )
    if loss.is_complex():
        raise StepError(
            f"the loss is complex ({loss.dtype}), and only a real number can be minimized. "
            "Return its real part or its magnitude: loss.real or loss.abs()."
        )
    if type(values) is not dict and not isinstance(values, Mapping):
        raise StepError(
            f"the second item that the step function returned is {a_type(values)}. "
            "Return (loss, {name: value})."
        )
    if needs_gradient and not loss.requires_grad:
        raise StepError(_why_no_gradient(loss))
    named = {name: _on_device(name, value, loss) for name, value in values.items()} if values else {}
    return Outcome(loss.reshape(()) if loss.dim() else loss, named)


def _hint_for(returned: Any, second: Any) -> str:
    """Return a sentence about what was probably meant; `second` is the second item of a pair."""
    if isinstance(second, Tensor) and second.numel() == 1:
        return " The loss comes first: instead of (output, loss), return (loss, {'output': output})."
    if isinstance(getattr(returned, "loss", None), Tensor):
        return " It has one: return its .loss."
    if isinstance(returned, float):
        return " A number has no gradient: return the tensor, without .item() or float()."
    if isinstance(returned, Mapping):
        return " Return the loss first, and other values in a dict: (loss, {name: value})."
    if isinstance(returned, tuple | list):
        return f" It returned {len(returned)} items: name the values after the loss, in a dict."
    if isinstance(returned, Tensor):
        return " For one loss per sample or element, return loss.mean()."
    return ""


def _why_no_gradient(loss: Tensor) -> str:
    advice = "Compute it from the model's output"
    if not torch.is_grad_enabled():
        return (
            "the loss has no gradient, because the step was called inside torch.no_grad() or "
            f"torch.inference_mode(). {advice}, outside torch.no_grad()."
        )
    if not loss.is_floating_point():
        return (
            f"the loss has no gradient, because it is {loss.dtype}: counts and comparisons, such as an "
            f"accuracy, cannot be minimized. {advice}, with a differentiable function."
        )
    return (
        f"the loss has no gradient. {advice}, outside torch.no_grad(), without .detach(), .item() or .data, "
        "and leave at least one parameter unfrozen."
    )


def _on_device(name: Any, value: Any, loss: Tensor) -> Tensor:
    """Return a value as a tensor; a number is filled in on the device, which can be recorded."""
    if not isinstance(name, str):
        raise StepError(
            f"the step function returned a value named {name!r}, which is of type {type(name).__name__}. "
            "Return (loss, {name: value}) with names that are strings."
        )
    if name == "loss":
        raise StepError(
            "the step function returned a value named 'loss', which is the name of the loss itself. "
            "Choose another name, such as 'task_loss'."
        )
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        # torch.compile turns NumPy scalars into these.
        value = torch.as_tensor(value).to(loss.device)
    if isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex()):
        raise StepError(
            f"the step function returned a complex value for {name!r}, and means need real numbers. "
            "Return its real part or its magnitude: value.real or abs(value)."
        )
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float):
        return torch.full((), value, device=loss.device)
    raise StepError(
        f"the step function returned {name!r} as {value!r}. Return a number or a tensor for each name."
    )
