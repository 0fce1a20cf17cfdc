"""Whether an argument is a number; `torch.compile` can trace these checks."""

from __future__ import annotations

import numbers
from typing import Any

from torch import Tensor


def is_number(value: Any) -> bool:
    """Return whether a value is a real number or a tensor.

    >>> [is_number(value) for value in (0.5, 2, "0.5", None, [0.5], 1j)]
    [True, True, False, False, False, False]
    """
    return isinstance(value, numbers.Real | Tensor)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer.

    >>> [is_integer(value) for value in (2, 2.0, "2")]
    [True, False, False]
    """
    return isinstance(value, numbers.Integral)
