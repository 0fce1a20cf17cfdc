"""Advice for a node that gets a tuple, because the node before it returns several values, as nn.LSTM does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flodl.core import FlodlError
from flodl.core.formats import a_type

_MARK = "flodl: the node before, "


def add_tuple_advice(error: Exception, given: Mapping[str, Any]) -> None:
    """Add a note to an error about a tuple or list; `given` are the inputs of the node, by their own nodes.

    >>> error = TypeError("linear(): argument 'input' (position 1) must be Tensor, not tuple")
    >>> add_tuple_advice(error, {"lstm_1": (1, 2)})
    >>> error.__notes__
    ["flodl: the node before, 'lstm_1', returns a tuple of 2. Select its first part before this node: ..."]
    """
    if isinstance(error, FlodlError) or tuple_advice_of(error):
        return
    for key, value in given.items():
        kind = type(value).__name__
        if isinstance(value, tuple | list) and kind in str(error):
            error.add_note(
                f"{_MARK}{key!r}, returns {a_type(value)} of {len(value)}. Select its first part before this "
                "node: .through(lambda out: out[0])."
            )
            return


def tuple_advice_of(error: Exception) -> str:
    """Return the advice that was added to an error, or ""."""
    notes = (note for note in getattr(error, "__notes__", []) if note.startswith(_MARK))
    return next((f"T{note.removeprefix('flodl: t')}" for note in notes), "")
