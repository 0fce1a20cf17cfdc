"""Validating recorded values and reducing them without synchronizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import MetricError
from flodl.core.formats import a_type

from .means import device_copy, device_sum

Scalar = float | Tensor | np.generic
Value = Scalar | np.ndarray[Any, Any] | Sequence[Scalar]


class Measured(NamedTuple):
    """Values of a metric: how many, and their sum on the host or on a device."""

    total: float | Tensor
    num_values: int


def measure(name: str, value: object) -> list[Measured]:
    """Reduce a number, a one-element tensor, or a sequence of them; nothing is read from a device.

    >>> measure("loss", 0.5)
    [Measured(total=0.5, num_values=1)]
    >>> measure("loss", np.array([1.0, 2.0, 3.0]))
    [Measured(total=6.0, num_values=3)]
    >>> measure("loss", torch.zeros(2, 3))
    Traceback (most recent call last):
    flodl.core.errors.MetricError: the metric 'loss' got a tensor of shape (2, 3). \
Reduce it to one number first, for example with .mean(), or record a 1-D tensor of values.
    """
    if isinstance(value, float):
        return [Measured(value, 1)]
    if isinstance(value, Tensor):
        return [_from_tensor(name, value)]
    if isinstance(value, (np.ndarray, np.generic)):
        return [_from_array(name, np.asarray(value))]
    if isinstance(value, Real):
        return [Measured(_from_number(name, value), 1)]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return _from_sequence(name, value)
    raise MetricError(
        f"the metric {name!r} got {_describe(value)}. "
        "Record a number, a one-element tensor, or a sequence of them."
    )


def check_weight(name: str, weight: object) -> float | Tensor:
    """Return a weight that is not negative: a number, or a copy of a one-element tensor on its device."""
    if isinstance(weight, Tensor):
        if weight.numel() != 1:
            raise MetricError(
                f"the weight of the metric {name!r} is a tensor of shape {tuple(weight.shape)}. "
                "Pass one weight for all values of the call, for example the batch size."
            )
        _check_tensor(f"the weight of the metric {name!r} is", weight)
        return device_copy(weight)
    if isinstance(weight, (Real, np.generic)) and not isinstance(weight, np.complexfloating):
        number = _from_number(name, weight)
        if 0.0 <= number < math.inf:
            return number
    raise MetricError(
        f"the weight of the metric {name!r} is {_describe(weight)}. "
        "Pass a number of at least 0, for example the batch size."
    )


def _from_tensor(name: str, tensor: Tensor) -> Measured:
    _check_tensor(f"the metric {name!r} got", tensor)
    if tensor.numel() == 1:
        return Measured(device_copy(tensor), 1)
    _check_shape(name, "tensor", tuple(tensor.shape))
    return Measured(device_sum(tensor), tensor.numel())


def _from_array(name: str, array: np.ndarray[Any, Any]) -> Measured:
    if array.dtype.kind not in "fiub":
        raise MetricError(
            f"the metric {name!r} got an array of shape {array.shape} and dtype {array.dtype}. "
            "Record real numbers; for complex ones, record the absolute value or the real part."
        )
    if array.size != 1:
        _check_shape(name, "array", array.shape)
    return Measured(float(array.sum(dtype=np.float64)), array.size)


def _from_number(name: str, number: object) -> float:
    try:
        return float(number)  # type: ignore[arg-type]
    except OverflowError:
        raise MetricError(
            f"the metric {name!r} got an integer that is too large for a float. Scale it down."
        ) from None


def _from_sequence(name: str, values: Sequence[object]) -> list[Measured]:
    if not values:
        raise MetricError(
            f"the metric {name!r} got an empty {type(values).__name__}. "
            "Record at least one value, or skip the call."
        )
    measured: list[Measured] = []
    for position, item in enumerate(values):
        found = [] if isinstance(item, Sequence) else measure(name, item)
        if len(found) != 1 or found[0].num_values != 1:
            raise MetricError(
                f"the metric {name!r} got {a_type(values)} whose item {position} is not a single "
                "number. Record a flat sequence of numbers, or reduce the values first."
            )
        measured += found
    return measured


def _check_tensor(what: str, tensor: Tensor) -> None:
    shape = tuple(tensor.shape)
    if tensor.is_complex():
        why, advice = (
            f"of dtype {tensor.dtype}",
            "Take its absolute value or real part, for example with .abs().",
        )
    elif tensor.is_meta:
        why, advice = "on the meta device, which has no values", "Record it from a real run."
    elif tensor.layout != torch.strided:
        why, advice = f"of layout {tensor.layout}", "Reduce it first, for example with .sum()."
    else:
        return
    raise MetricError(f"{what} a tensor of shape {shape} {why}. {advice}")


def _check_shape(name: str, kind: str, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise MetricError(
            f"the metric {name!r} got an empty {kind} of shape {shape}. "
            "Record at least one value, or skip the call."
        )
    if len(shape) > 1:
        raise MetricError(
            f"the metric {name!r} got {'an' if kind == 'array' else 'a'} {kind} of shape {shape}. "
            f"Reduce it to one number first, for example with .mean(), or record a 1-D {kind} of values."
        )


def _describe(value: object) -> str:
    # Show plain values only: printing a container could print a tensor, which would synchronize.
    if value is None:
        return "None"
    if not isinstance(value, (str, bytes, int, float, complex)):
        return f"{a_type(value)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'}, {a_type(value)}"
