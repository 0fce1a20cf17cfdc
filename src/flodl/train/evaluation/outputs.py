"""What to write for `outputs=`, which returns the predictions and targets of a batch for the metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flodl.core import TrainError


def fitting_outputs(step_fn: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return an example of `outputs=` for such a batch, with the names of the step function.

    >>> fitting_outputs(lambda model, x, weight, y: x, (1, 2, 3))
    'outputs=lambda model, x, weight, y: (model(x), y)'
    >>> fitting_outputs(lambda model, batch: batch, ({"text": 1, "label": 2},))
    "outputs=lambda model, batch: (model(batch['text']), batch['label'])"
    """
    if len(arguments) == 1:
        names = [repr(name) for name in arguments[0]] if isinstance(arguments[0], Mapping) else []
        first, last = (names[0], names[-1]) if len(names) > 1 else ("'x'", "'y'")
        return f"outputs=lambda model, batch: (model(batch[{first}]), batch[{last}])"
    names = _names(step_fn, len(arguments))
    return f"outputs=lambda model, {', '.join(names)}: (model({names[0]}), {names[-1]})"


def check_outputs(
    outputs: Callable[..., Any], step_fn: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError
) -> None:
    """After a TypeError, raise TrainError if `outputs` cannot be called with such a batch."""
    try:
        inspect.signature(outputs).bind(None, *arguments)
    except TypeError as mismatch:
        count = "one batch" if len(arguments) == 1 else f"the {len(arguments)} parts of a batch"
        raise TrainError(
            f"outputs is called like the step function, with the model and {count}: {mismatch}. Write "
            f"{fitting_outputs(step_fn, arguments)}."
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
