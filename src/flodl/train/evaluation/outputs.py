"""Predictions and targets of a batch for the metrics: from `outputs=`, or by calling the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import FlodlError, TrainError
from flodl.core.formats import a_type
from flodl.engine import explained

from .model_calls import ModelCall, described, other_classes, other_inputs

Outputs = Callable[..., tuple[Any, Any]]
OF_DATA = "of the evaluation data"
_CALLED = "outputs="


def predict(
    outputs: Outputs | None,
    model: nn.Module,
    step_fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    calls: Sequence[ModelCall] = (),
) -> tuple[Any, Any]:
    """Return the predictions and targets of a batch; `calls` are those of the model in the step function."""
    if outputs is None:
        return _pair(model, step_fn, arguments, calls)
    try:
        found: Any = outputs(model, *arguments)
    except Exception as error:
        if isinstance(error, TypeError):
            _check_signature(outputs, model, step_fn, arguments, error)
        if better := explained(error, outputs, model, arguments, (), of_data=OF_DATA, called=_CALLED):
            raise better from error
        if not isinstance(error, FlodlError | torch.OutOfMemoryError):
            error.add_note("This error is from outputs=, which returns predictions and targets for metrics=.")
        raise
    if not isinstance(found, tuple | list) or len(found) != 2:
        kind = a_type(found) + (f" of {len(found)}" if isinstance(found, tuple | list) else "")
        raise TrainError(
            f"outputs returned {kind}. Return predictions and targets: "
            f"{fitting_outputs(model, step_fn, arguments)}."
        )
    return found[0], found[1]


def _pair(
    model: nn.Module,
    step_fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    calls: Sequence[ModelCall],
) -> tuple[Any, Any]:
    """Treat a batch as inputs and targets."""
    if len(arguments) != 2:
        raise TrainError(
            f"metrics need predictions and targets, and the batch has {len(arguments)} "
            f"{'part' if len(arguments) == 1 else 'parts'}, not two. Define them: "
            f"{fitting_outputs(model, step_fn, arguments)}."
        )
    inputs, targets = arguments
    try:
        return model(inputs), targets
    except Exception as error:
        if not isinstance(inputs, Mapping):
            _check_one_input(model, step_fn, arguments, error)
            _check_same_input(model, step_fn, arguments, calls, error)
            raise
        raise TrainError(
            f"metrics need predictions, and the model cannot be called with the {type(inputs).__name__} that "
            f"is the first part of the batch: {type(error).__name__}: {error}\nDefine them: outputs=lambda "
            "model, inputs, targets: (model(**inputs), targets), or outputs=flodl.hf.outputs for a model of "
            "flodl.hf."
        ) from error


def _check_one_input(
    model: nn.Module, step_fn: Callable[..., Any], arguments: tuple[Any, ...], error: Exception
) -> None:
    """After an error of `model(x)`, raise TrainError if the model takes more than one part of the batch."""
    try:
        inspect.signature(model.forward).bind(arguments[0])
    except TypeError as mismatch:
        raise TrainError(
            "metrics need predictions, and the model cannot be called with the first part of the batch "
            f"alone: {mismatch}. Define them: {fitting_outputs(model, step_fn, arguments)}."
        ) from error
    except ValueError:
        return  # it has no signature


def _check_same_input(
    model: nn.Module,
    step_fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    calls: Sequence[ModelCall],
    error: Exception,
) -> None:
    """After an error of `model(x)`, raise TrainError if the step function calls the model differently."""
    inputs = arguments[0]
    if isinstance(error, torch.OutOfMemoryError) or not calls or not isinstance(inputs, Tensor):
        return
    if any(call.given is inputs for call in calls):
        return
    names = _names(step_fn, len(arguments))
    first_line = str(error).partition("\n")[0].rstrip(".")
    raise TrainError(
        f"metrics need predictions, and model({names[0]}) fails with the first part of the batch: "
        f"{type(error).__name__}: {first_line}. The step function calls the model with "
        f"{described(calls[0].given, inputs)}. "
        f"Do the same for the metrics: outputs=lambda model, {', '.join(names)}: (model(…), {names[-1]}), or "
        "prepare the data before the training."
    ) from error


def warning_about_inputs(
    step_fn: Callable[..., Any], arguments: tuple[Any, ...], calls: Sequence[ModelCall], predictions: Any
) -> str:
    """Return a warning if the step function calls the model with something else than the metrics do."""
    other = other_inputs(calls, arguments[0], predictions)
    names = _names(step_fn, len(arguments))
    return other and (
        f"the metrics in metrics= get model({names[0]}), but the step function calls the model with {other}, "
        "so they do not evaluate what its loss uses. Do the same for the metrics: outputs=lambda "
        f"model, {', '.join(names)}: (model(…), {names[-1]}), or prepare the data before training."
    )


def warning_about_classes(
    step_fn: Callable[..., Any], arguments: tuple[Any, ...], used: Sequence[tuple[Tensor, int]]
) -> str:
    """Return a warning if the losses of the step function get other class indices than the metrics do."""
    other = other_classes(used, arguments[-1])
    names = _names(step_fn, len(arguments))
    return other and (
        f"the metrics in metrics= get {names[-1]}, but the loss of the step function gets other classes, "
        f"such as {other}. Do the same for the metrics: outputs=lambda model, {', '.join(names)}: "
        f"(model({names[0]}), …), or change the labels before training."
    )


def fitting_outputs(model: nn.Module, step_fn: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return an example of `outputs=` for such a batch, with the names of the step function.

    The model gets as many parts as its forward needs, and those with the names of optional parameters.

    >>> linear, gru = nn.Linear(2, 1), nn.GRUCell(2, 1)
    >>> fitting_outputs(linear, lambda model, x, weight, y: x, (1, 2, 3))
    'outputs=lambda model, x, weight, y: (model(x), y)'
    >>> fitting_outputs(gru, lambda model, x, hx, y: x, (1, 2, 3))
    'outputs=lambda model, x, hx, y: (model(x, hx), y)'
    >>> fitting_outputs(linear, lambda model, batch: batch, ({"text": 1, "label": 2},))
    "outputs=lambda model, batch: (model(batch['text']), batch['label'])"
    """
    if len(arguments) == 1:
        keys = list(arguments[0]) if isinstance(arguments[0], Mapping) else []
        if len(keys) < 2:
            keys = ["x", "y"]
        parts = {str(key): f"batch[{key!r}]" for key in keys}
        return f"outputs=lambda model, batch: ({_call(model, parts)}, {[*parts.values()][-1]})"
    names = _names(step_fn, len(arguments))
    call = _call(model, {name: name for name in names})
    return f"outputs=lambda model, {', '.join(names)}: ({call}, {names[-1]})"


def _call(model: nn.Module, parts: Mapping[str, str]) -> str:
    """Return the call of a model with parts of a batch, which are expressions by name, the targets last."""
    try:
        parameters = [*inspect.signature(model.forward).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names, taken = [*parts], []
    for parameter, name in zip(positional, names):
        is_required = parameter.default is parameter.empty
        if not is_required and (parameter.name != name or name == names[-1]):
            break
        taken.append(parts.get(parameter.name, parts[name]))
    taken = taken or [parts[names[0]]]
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name in names[:-1]:
            taken.append(f"{parameter.name}={parts[parameter.name]}")
    return f"model({', '.join(taken)})"


def _check_signature(
    outputs: Outputs,
    model: nn.Module,
    step_fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    error: TypeError,
) -> None:
    """After a TypeError, raise TrainError if `outputs` cannot be called with such a batch."""
    try:
        inspect.signature(outputs).bind(None, *arguments)
    except TypeError as mismatch:
        count = "one batch" if len(arguments) == 1 else f"the {len(arguments)} parts of a batch"
        raise TrainError(
            f"outputs is called like the step function, with the model and {count}: {mismatch}. Write "
            f"{fitting_outputs(model, step_fn, arguments)}."
        ) from error
    except ValueError:
        return  # it has no signature


def _names(step_fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names that a step function has for the parts of a batch."""
    try:
        parameters = [*inspect.signature(step_fn).parameters.values()][1:]
    except (TypeError, ValueError):
        parameters = []
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD][:count]
    usual = ["x", *(f"part_{number}" for number in range(2, count)), "y"]
    return names if len(names) == count else usual
