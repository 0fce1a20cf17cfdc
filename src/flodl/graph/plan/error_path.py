"""Add the dotted path of the failing node to an error while it propagates out of nested graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import FlodlError

_MARK = "flodl: at '"


def prepend_path(error: Exception, segment: str, details: str = "") -> None:
    """Prepend `segment` to the path in the error's note, and append `details` about that segment.

    >>> error = ValueError("shapes differ")
    >>> prepend_path(error, "linear_1", "Linear(3, 4), given (2, 8)")
    >>> prepend_path(error, "body", "iteration 2 of 5")
    >>> error.__notes__
    ["flodl: at 'body.linear_1', Linear(3, 4), given (2, 8), iteration 2 of 5"]
    """
    if isinstance(error, FlodlError):
        error.under(segment)
        if details:
            error.add_note(f"flodl: {details}")
        return
    ending = f", {details}" if details else ""
    notes: list[str] = getattr(error, "__notes__", [])
    for position, note in enumerate(notes):
        if note.startswith(_MARK):
            notes[position] = f"{_MARK}{segment}.{note[len(_MARK) :]}{ending}"
            return
    error.add_note(f"{_MARK}{segment}'{ending}")


def set_path(error: Exception, path: str, details: str) -> None:
    """Replace the path in the error's note by a longer one, or add the note.

    >>> error = ValueError("shapes differ")
    >>> prepend_path(error, "body", "Sequential(…), given (2, 8)")
    >>> set_path(error, "body.1", "Linear(3, 4), given (2, 6)")
    >>> error.__notes__
    ["flodl: at 'body.1', Linear(3, 4), given (2, 6)"]
    """
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(_MARK)]
    error.add_note(f"{_MARK}{path}', {details}")


def path_of_error(error: Exception) -> tuple[str, str]:
    """Return the path built by `prepend_path` and the details after it; empty strings if there is none."""
    for note in getattr(error, "__notes__", []):
        if note.startswith(_MARK):
            path, _, details = note[len(_MARK) :].partition("'")
            return path, details.removeprefix(", ")
    return "", ""


def one_line_repr(module: nn.Module) -> str:
    """Return the repr of a module in one line, without its children.

    >>> one_line_repr(nn.ReLU()), one_line_repr(nn.Sequential(nn.ReLU()))
    ('ReLU()', 'Sequential(…)')
    """
    text = repr(module)
    return f"{type(module).__name__}(…)" if "\n" in text else text


def details_of_part(error: Exception, part: Any, value: Any) -> str:
    """Return the details about a part of a control node and its input, unless the error has a path already.

    >>> details_of_part(ValueError("shapes differ"), nn.ReLU(), torch.zeros(2, 3))
    'ReLU(), given (2, 3)'
    """
    if isinstance(error, FlodlError) or path_of_error(error)[0]:
        return ""
    module = f"{one_line_repr(part)}, " if isinstance(part, nn.Module) else ""
    return f"{module}given {describe_value(value)}"


def describe_value(value: Any) -> str:
    """Describe an input of a node: shape and non-default dtype of a tensor, else the type.

    >>> describe_value(torch.zeros(2, 3)), describe_value(torch.zeros(2, dtype=torch.int64))
    ('(2, 3)', '(2,) int64')
    >>> describe_value(None)
    'None'
    """
    if isinstance(value, Tensor):
        is_default = value.dtype == torch.get_default_dtype()
        return str(tuple(value.shape)) + ("" if is_default else f" {str(value.dtype).removeprefix('torch.')}")
    return "None" if value is None else type(value).__name__
