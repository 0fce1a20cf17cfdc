"""Step functions that cannot be called with the model and the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..batch.keywords import takes_names
from ..errors import StepCallError
from ..settings import StepFunction
from .batch_text import batch_text

_MODEL_NAMES = frozenset({"model", "m", "net", "network", "module"})


def check_step_function(step_fn: Callable[..., Any], model: nn.Module) -> None:
    """Raise if a loss of torch, a class or the model itself was passed as the step function.

    >>> check_step_function(nn.MSELoss(), nn.Linear(2, 1))
    Traceback (most recent call last):
    flodl.engine.errors.StepCallError: the step function is MSELoss, a loss. It takes the model and the ...
    """
    module = getattr(step_fn, "__module__", None) or ""
    name = getattr(step_fn, "__name__", type(step_fn).__name__)
    is_loss = "loss" in name.lower() or "entropy" in name
    before, loss = "", "nn.functional.mse_loss"
    if is_loss:
        loss = f"nn.functional.{name}" if module == "torch.nn.functional" else "criterion"
        before = f"criterion = {name}(…); step_fn = " if loss == "criterion" else ""
    advice = (
        f"It takes the model and the batch, and returns the loss: {before}lambda model, x, y: "
        f"{loss}(model(x), y)."
    )
    if step_fn is model:
        raise StepCallError(f"the step function is the model itself. {advice}")
    if isinstance(step_fn, type):
        raise StepCallError(f"the step function is the class {name}. {advice}")
    is_layer = isinstance(step_fn, nn.Module) and type(step_fn).__module__.startswith("torch.nn.modules")
    if is_layer or module == "torch.nn.functional":
        raise StepCallError(
            f"the step function is {name}, {'a loss' if is_loss else 'of torch.nn'}. {advice}"
        )


def signature_mismatch(step_fn: StepFunction, batch: tuple[Any, ...], extra: Iterable[str]) -> str | None:
    """Return what is wrong if a step function cannot be called with such a batch."""
    own = takes_names(step_fn)
    if own is not None:
        return _keyword_mismatch(own, batch, extra)
    function: Any = step_fn.forward if isinstance(step_fn, nn.Module) else step_fn
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(None, *batch, **dict.fromkeys(extra))
    except TypeError as mismatch:
        return (
            f"the step function {signature_text(step_fn)} is called with the model and {_parts(batch)}: "
            f"{mismatch}. {_how_to_call(signature, batch)}"
        )
    return None


def model_not_first(step_fn: StepFunction, error: BaseException) -> str | None:
    """Return what is wrong if a step function takes the model, but not as its first argument.

    >>> error = TypeError("'Tensor' object is not callable")
    >>> model_not_first(lambda x, y, model: model(x), error)
    "the step function takes (x, y, model), and is called with the model first: 'x' is the model. Write ..."
    """
    if "'Tensor' object is not callable" not in str(error):
        return None
    try:
        names = [*inspect.signature(step_fn).parameters]
    except (TypeError, ValueError):
        return None
    if not names or names[0] in _MODEL_NAMES or not _MODEL_NAMES.intersection(names):
        return None
    right = sorted(names, key=lambda name: name not in _MODEL_NAMES)
    return (
        f"the step function takes ({', '.join(names)}), and is called with the model first: {names[0]!r} is "
        f"the model. Write def step_fn({', '.join(right)})."
    )


def _keyword_mismatch(own: StepFunction, batch: tuple[Any, ...], extra: Iterable[str]) -> str | None:
    """Return what is wrong with the batch of a step function that takes it by keyword."""
    told = f"the step function {signature_text(own)} takes the batch by keyword"
    if len(batch) != 1 or not isinstance(batch[0], Mapping):
        return f"{told}, and is called with the model and {_parts(batch)}. Write step(**batch)."
    try:
        inspect.signature(own).bind(None, **batch[0], **dict.fromkeys(extra))
    except TypeError as mismatch:
        return f"{told}, and the batch is {batch_text(batch)}: {mismatch}."
    return None


def _parts(batch: tuple[Any, ...]) -> str:
    if not batch:
        return "nothing else"
    return f"{len(batch)} {'argument' if len(batch) == 1 else 'arguments'} {batch_text(batch)}"


def _how_to_call(signature: inspect.Signature, batch: tuple[Any, ...]) -> str:
    names = [*signature.parameters][1:]
    if not batch:
        return f"Pass the batch: step({', '.join(names) or 'x, y'})."
    if len(batch) == 1 and isinstance(batch[0], tuple | list) and len(batch[0]) == len(names):
        return f"Write step(*batch), or step({', '.join(names)}), with the parts one by one."
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        return f"Pass the parts one by one, step({', '.join(names)}), or write def step_fn(model, batch)."
    return "Its parameters are the model and then, in order, what you pass to the step."


def signature_text(step_fn: StepFunction) -> str:
    """Return the name and parameters of a step function, and where it is defined.

    >>> signature_text(print)
    'print'
    """
    name = getattr(step_fn, "__qualname__", type(step_fn).__name__).rpartition(".")[2]
    code = getattr(inspect.unwrap(step_fn), "__code__", None)
    if code is None:
        return name
    where = f" at {Path(code.co_filename).name}:{code.co_firstlineno}"
    try:
        parameters = inspect.signature(step_fn).parameters.values()
    except (TypeError, ValueError):
        return f"{name}{where}"
    return f"{name}({', '.join(map(_parameter_text, parameters))}){where}"


def _parameter_text(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return stars.get(parameter.kind.name, "") + parameter.name
