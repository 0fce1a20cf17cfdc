"""Whole numbers, as counts and settings are."""

from __future__ import annotations

from typing import Any


def is_whole(value: Any, *, at_least: int) -> bool:
    """Say whether a value is a whole number from `at_least` up; True and False are none.

    >>> [is_whole(value, at_least=1) for value in (3, 0, 3.0, True)]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
