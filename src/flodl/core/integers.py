"""Checking integers such as counts and settings."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex


def is_integer(value: Any, *, at_least: int) -> bool:
    """Return whether a value is an int of at least `at_least`; bools do not count.

    >>> [is_integer(value, at_least=1) for value in (3, 0, 3.0, True)]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def is_index(value: Any, *, at_least: int) -> bool:
    """Return whether a value is an integer of at least `at_least`, of Python, NumPy or any other library.

    >>> import numpy
    >>> [is_index(value, at_least=1) for value in (numpy.int64(3), numpy.float64(3.0), True, "3")]
    [True, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    try:
        return operator.index(value) >= at_least
    except TypeError:
        return False
