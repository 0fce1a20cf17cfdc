"""Checking integers such as counts and settings."""

from __future__ import annotations

from typing import Any


def is_integer(value: Any, *, at_least: int) -> bool:
    """Return whether a value is an int of at least `at_least`; bools do not count.

    >>> [is_integer(value, at_least=1) for value in (3, 0, 3.0, True)]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
