"""Whether a function returns a value, judged by its code."""

from __future__ import annotations

import dis
from types import CodeType


def returns_a_value(code: CodeType) -> bool:
    """Return whether code has a return statement with a value other than None.

    >>> returns_a_value((lambda x: x).__code__), returns_a_value((lambda x: None).__code__)
    (True, False)
    """
    before = None
    for instruction in dis.get_instructions(code):
        is_value = instruction.opname == "RETURN_VALUE"
        if is_value and not (before and before.opname == "LOAD_CONST" and before.argval is None):
            return True
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        before = instruction
    return False
