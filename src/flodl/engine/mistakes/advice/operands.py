"""The operand of a failed instruction: what was being subscripted or unpacked."""

from __future__ import annotations

import dis
from collections.abc import Mapping
from typing import Any

# Instructions that read a local variable, or the variable of an enclosing function; and pairs of them.
_VARIABLES = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF")
_PAIRS = ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")


def operand_of(error: Exception, operation: str) -> Any:
    """Return the object that the failed instruction worked on, if it was read from local variables.

    >>> def read(batch):
    ...     return batch["y"]
    >>> try:
    ...     read({"x": 1})
    ... except KeyError as error:
    ...     operand_of(error, "BINARY_")
    {'x': 1}
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    last, variables = traceback.tb_lasti, traceback.tb_frame.f_locals
    before = [one for one in dis.get_instructions(traceback.tb_frame.f_code) if one.offset <= last]
    if not before or not before.pop().opname.startswith(operation):
        return None
    return _container(before, variables) if operation == "BINARY_" else _pushed(before, variables)


def _container(before: list[dis.Instruction], variables: Mapping[str, Any]) -> Any:
    """Return the container of a subscript: what was read before its key, a constant or a variable."""
    if not before:
        return None
    key = before[-1]
    if key.opname in _PAIRS and key.opname.startswith("LOAD"):
        return variables.get(key.argval[0])
    return _pushed(before[:-1], variables) if key.opname in ("LOAD_CONST", *_VARIABLES) else None


def _pushed(before: list[dis.Instruction], variables: Mapping[str, Any]) -> Any:
    """Return what the last of these instructions reads from a variable, or from an item of one; else None."""
    if not before:
        return None
    last = before[-1]
    if last.opname in _VARIABLES:
        return variables.get(last.argval)
    if last.opname in _PAIRS:
        return variables.get(last.argval[-1])
    if last.opname.startswith("BINARY_") and len(before) > 1 and before[-2].opname == "LOAD_CONST":
        container = _container(before[:-1], variables)
        if isinstance(container, Mapping | list | tuple):
            try:
                return container[before[-2].argval]
            except (LookupError, TypeError):
                return None
    return None
