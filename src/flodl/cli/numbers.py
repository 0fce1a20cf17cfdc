"""Parse numbers without silent overflow: 1e999 is not infinity, and 1e-999 is not zero."""

from __future__ import annotations

import math
import re

_INF_OR_NAN = re.compile(r"[-+]?\.?(inf(inity)?|nan)\Z", re.IGNORECASE)
# What tensors, JSON and TOML can hold, signed or unsigned.
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


class NumberRangeError(ValueError):
    """The text is a number, but it is out of range; the message says how."""


def parse_float(text: str) -> float:
    """Convert text to a float; raise `NumberRangeError` if the number is out of its range.

    >>> parse_float("1e-3"), parse_float("-inf"), parse_float(".inf")
    (0.001, -inf, inf)
    >>> parse_float("1e999")
    Traceback (most recent call last):
    flodl.cli.numbers.NumberRangeError: it is too large
    """
    stripped = text.strip()
    if _INF_OR_NAN.match(stripped):
        return float(stripped.replace(".", ""))
    value = float(stripped)
    if math.isinf(value):
        raise NumberRangeError("it is too large")
    if value == 0 and re.search("[1-9]", re.split("[eE]", stripped)[0]):
        raise NumberRangeError("it is too close to zero")
    return value


def parse_int(text: str, base: int = 10) -> int:
    """Convert text to an integer; raise `NumberRangeError` if it does not fit in 64 bits.

    >>> parse_int("ff", 16)
    255
    >>> parse_int("1" * 30)
    Traceback (most recent call last):
    flodl.cli.numbers.NumberRangeError: it does not fit in 64 bits
    """
    if len(text) > 100:  # more than 64 bits in any base; Python refuses to convert very long numbers
        raise NumberRangeError("it does not fit in 64 bits")
    value = int(text, base)
    if not _MIN_INT <= value <= _MAX_INT:
        raise NumberRangeError("it does not fit in 64 bits")
    return value
