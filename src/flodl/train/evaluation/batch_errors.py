"""Explains an error of the step function by the batch and the model that it was called with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import StepError

from .step_errors import check_signature

_WRONG_DTYPE = re.compile(r"same dtype|scalar type|[Ii]nput type|expected .*dtype")
_WANTS_INDICES = re.compile(r"expected (target dtype to be Long|scalar type Long)")
_SECOND_BACKWARD = "backward through the graph a second time"
_MODEL_NAMES = frozenset({"model", "m", "net", "network", "module", "mdl"})
# Errors of torch and Python about values; others belong to the code of the user alone.
_EXPLAINED = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)


def explain_error(
    step_fn: Callable[..., Any], model: nn.Module, arguments: tuple[Any, ...], error: Exception
) -> None:
    """Raise StepError if the batch or the signature is the cause of an error, else add a note about them."""
    if isinstance(error, TypeError):
        check_signature(step_fn, arguments, error)
    if type(error) not in _EXPLAINED:
        return
    names = _names(step_fn, len(arguments))
    _check_order(step_fn, error)
    if isinstance(error, RuntimeError):
        _check_backward(error)
        _check_dtypes(names, model, arguments, error)
    described = "; ".join(f"{name}: {_describe(value)}" for name, value in zip(names, arguments))
    error.add_note(
        f"The step function was called with {_describe_model(model)} and {described or 'no batch'}."
    )


def _check_order(step_fn: Callable[..., Any], error: Exception) -> None:
    if "'Tensor' object is not callable" not in str(error):
        return
    parameters = _parameters(step_fn)
    if parameters and parameters[0] not in _MODEL_NAMES and _MODEL_NAMES.intersection(parameters):
        right = [name for name in parameters if name in _MODEL_NAMES]
        right += [name for name in parameters if name not in _MODEL_NAMES]
        raise StepError(
            f"the step function takes ({', '.join(parameters)}), and is called with the model first: "
            f"{parameters[0]!r} is the model. Write def step_fn({', '.join(right)})."
        ) from error


def _check_backward(error: RuntimeError) -> None:
    if _SECOND_BACKWARD in str(error):
        raise StepError(
            "the backward ran through the same computation a second time. If the step function calls "
            "loss.backward() or optimizer.step(), remove that: it returns the loss, and the rest is done for "
            "it. If it keeps a tensor from one step to the next, such as a hidden state, keep it with "
            ".detach()."
        ) from error


def _check_dtypes(
    names: list[str], model: nn.Module, arguments: tuple[Any, ...], error: RuntimeError
) -> None:
    parts = [(name, part) for name, part in zip(names, arguments) if isinstance(part, Tensor)]
    if _WANTS_INDICES.search(str(error)):
        found = next((pair for pair in parts[1:] if pair[1].dtype != torch.int64), None)
        if found is not None:
            raise StepError(
                f"{found[0]!r} of the batch has dtype {_dtype(found[1])}, and this loss takes class indices, "
                f"int64 ({error}). Convert the data: {found[0]}.long()."
            ) from error
    own = next((one.dtype for one in model.parameters() if one.is_floating_point()), None)
    if own is None or not _WRONG_DTYPE.search(str(error)):
        return
    floats = [pair for pair in parts if pair[1].is_floating_point() and pair[1].dtype != own]
    integers = [pair for pair in parts[:1] if not pair[1].is_floating_point() and not pair[1].is_complex()]
    for name, part in floats or integers:
        also = f"; or the model: model.to({part.dtype})" if part.is_floating_point() else ""
        raise StepError(
            f"{name!r} of the batch has dtype {_dtype(part)}, and the model computes in "
            f"{str(own).removeprefix('torch.')} ({error}). Convert the data: {name}.to({own}){also}."
        ) from error


def _parameters(step_fn: Callable[..., Any]) -> list[str]:
    try:
        found = inspect.signature(step_fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]


def _names(step_fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names by which a step function knows the parts of a batch."""
    names = _parameters(step_fn)[1 : count + 1]
    return names + [f"part {index}" for index in range(len(names), count)]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _describe_model(model: nn.Module) -> str:
    first = next(model.parameters(), None)
    where = "" if first is None else f" ({_dtype(first)} on {first.device})"
    return f"the {type(model).__name__}{where}"


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    text = f"shape {tuple(value.shape)}, {_dtype(value)} on {value.device}"
    if value.dtype == torch.int64 and value.device.type == "cpu" and value.numel():
        # On another device this could fail after an error there.
        text += f", values from {int(value.min())} to {int(value.max())}"
    return text
