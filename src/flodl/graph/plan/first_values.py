"""Advice for a node that fails in the first call, when no value has been carried yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from flodl.core import FlodlError


def add_first_value_advice(error: Exception, reads: Iterable[tuple[str, Any, Any]]) -> None:
    """Add a note to an error of a node; `reads` are the tags it reads, their `init`, and the first values.

    >>> error = TypeError("unsupported operand type(s) for +: 'Tensor' and 'NoneType'")
    >>> add_first_value_advice(error, [("memory", None, None)])
    >>> error.__notes__
    ["flodl: 'memory' is None in the first call, since nothing has been carried yet. Handle None, or set ..."]
    """
    if isinstance(error, FlodlError):
        return
    told = str(error)
    for tag, init, value in reads:
        if init is None and "None" in told:
            error.add_note(
                f"flodl: {tag!r} is None in the first call, since nothing has been carried yet. Handle None, "
                f"or set a first value: using({tag!r}, init='zeros'), a tensor, or a function of the stream."
            )
        elif init == "zeros" and isinstance(error, RuntimeError) and isinstance(value, Tensor):
            error.add_note(
                f"flodl: in the first call, {tag!r} has zeros in the shape of the stream, {[*value.shape]}. "
                f"For a different shape, pass a function of the stream: using({tag!r}, init=lambda x: "
                "x.new_zeros(len(x), 16))."
            )
