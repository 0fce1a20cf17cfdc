"""Naming the node at fault: the path of an error grows as it climbs out of nested parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import FlodlError

_MARK = "flodl: at '"


def climb(error: Exception, segment: str, what: str = "") -> None:
    """Put `segment` in front of the path that the error carries, and say `what` that segment is.

    >>> error = ValueError("shapes differ")
    >>> climb(error, "linear_1", "Linear(3, 4), given (2, 8)")
    >>> climb(error, "body", "turn 2 of 5")
    >>> error.__notes__
    ["flodl: at 'body.linear_1', Linear(3, 4), given (2, 8), turn 2 of 5"]
    """
    if isinstance(error, FlodlError):
        error.under(segment)
        if what:
            error.add_note(f"flodl: {what}")
        return
    ending = f", {what}" if what else ""
    notes: list[str] = getattr(error, "__notes__", [])
    for position, note in enumerate(notes):
        if note.startswith(_MARK):
            notes[position] = f"{_MARK}{segment}.{note[len(_MARK) :]}{ending}"
            return
    error.add_note(f"{_MARK}{segment}'{ending}")


def path_in(error: Exception) -> tuple[str, str]:
    """Give the path that `climb` has built up and the words after it; empty where there is none."""
    for note in getattr(error, "__notes__", []):
        if note.startswith(_MARK):
            path, _, words = note[len(_MARK) :].partition("'")
            return path, words.removeprefix(", ")
    return "", ""


def one_line(module: nn.Module) -> str:
    """Show a module in one line, without its parts.

    >>> one_line(nn.ReLU()), one_line(nn.Sequential(nn.ReLU()))
    ('ReLU()', 'Sequential(…)')
    """
    shown = repr(module)
    return f"{type(module).__name__}(…)" if "\n" in shown else shown


def shape_of(value: Any) -> str:
    """Show what flows into a node: shape and unusual dtype of a tensor, else the type.

    >>> shape_of(torch.zeros(2, 3)), shape_of(torch.zeros(2, dtype=torch.int64)), shape_of(None)
    ('(2, 3)', '(2,) int64', 'None')
    """
    if isinstance(value, Tensor):
        usual = value.dtype == torch.get_default_dtype()
        return str(tuple(value.shape)) + ("" if usual else f" {str(value.dtype).removeprefix('torch.')}")
    return "None" if value is None else type(value).__name__
