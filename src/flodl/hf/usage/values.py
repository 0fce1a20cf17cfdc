"""Errors for arguments of the wrong type: they show the value and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from flodl.core import HFError
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer


def integer(value: Any, name: str, *, at_least: int = 0) -> int:
    """Return an integer, including a NumPy one; raise for anything else.

    >>> integer("x", "stride")
    Traceback (most recent call last):
    flodl.core.errors.HFError: stride='x'; expected an integer of at least 0.
    """
    value = as_integer(value)
    if not is_integer(value, at_least=at_least):
        raise HFError(f"{name}={value!r:.100}; expected an integer of at least {at_least}.")
    return int(value)


def check_listed(values: Any, name: str, example: str) -> None:
    """Raise unless the values are a list or another iterable with an item per text."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise HFError(f"{name} is {a_type(values)}; expected a list, such as {example}.")


def check_labels_of_batch(labels: Any) -> None:
    """Raise unless the labels of a batch are a tensor, or the tensors of question answering."""
    parts = [*labels.values()] if isinstance(labels, Mapping) else labels
    if not isinstance(parts, list | tuple):
        parts = [labels]
    wrong = [part for part in parts if not isinstance(part, Tensor)]
    if wrong or not parts:
        found = "an empty list" if not parts else a_type(wrong[0] if len(parts) == 2 else labels)
        raise HFError(
            f"the labels of the batch are {found}; expected a tensor. Train on model.dataset(texts, labels), "
            "or convert them: torch.tensor(labels)."
        )


def check_inputs(inputs: Any, function: str) -> None:
    """Raise unless the inputs of a batch are a dict by name."""
    if not isinstance(inputs, Mapping):
        raise HFError(
            f"{function} got {a_type(inputs)} as inputs; expected the inputs of the model by name. "
            f"Call {function}({{'input_ids': input_ids}}, labels)."
        )
