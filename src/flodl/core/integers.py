"""Integers and numbers such as counts and settings: conversion to those of Python, and checks."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any, SupportsFloat, SupportsIndex


def as_integer(value: Any) -> Any:
    """Return an integer of NumPy or any other library as an int, and every other value as it is.

    >>> import numpy
    >>> [as_integer(value) for value in (numpy.int64(3), 3, True, 3.0, "3", None)]
    [3, 3, True, 3.0, '3', None]
    """
    if type(value) is int or isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return value
    # A tensor of one number has an index whatever its shape, and so has one of bool.
    if getattr(value, "shape", ()) != () or "bool" in str(getattr(value, "dtype", "")):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def as_number(value: Any) -> Any:
    """Return a number of NumPy or any other library as an int or float, and every other value as it is.

    >>> import numpy
    >>> [as_number(value) for value in (numpy.float32(0.5), numpy.int64(3), 1, True, "3")]
    [0.5, 3, 1, True, '3']
    """
    value = as_integer(value)
    if type(value) in (int, float) or isinstance(value, bool) or not isinstance(value, Real):
        return value
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether a value is a single real number, of Python, NumPy, torch or any other library.

    >>> import numpy
    >>> [is_number(value) for value in (0.5, numpy.float32(0.5), "0.5", None, [0.5], 1j)]
    [True, True, False, False, False, False]
    """
    return isinstance(value, SupportsFloat) and getattr(value, "shape", ()) == ()


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
