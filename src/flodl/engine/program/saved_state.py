"""Validation of a saved step state: all of it is checked before any of it is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import StepError
from flodl.core.formats import a_type

_COUNTS = ("steps", "updates", "usual_samples", "num_skipped")
_KEYS = (*_COUNTS, "means", "scaler", "schedule")
_HINT = "Load what state_dict() of a TrainStep returned."


def check_carried(state: Any, nums_carried: Sequence[int]) -> None:
    """Raise if these are not the carried values of graphs that carry these numbers of values.

    >>> check_carried([{"values": (None,), "batch": None}], [2])
    Traceback (most recent call last):
    flodl.core.errors.StepError: the state's carried[0]['values'] are (None,), and the graph carries 2 ...
    """
    saved = _require_list("carried values", state)
    if len(saved) != len(nums_carried):
        raise StepError(
            f"the state has the carried values of {len(saved)} graphs, and the model has {len(nums_carried)} "
            "that carry values. Build the model as it was when the state was saved."
        )
    for index, (one, num) in enumerate(zip(saved, nums_carried)):
        path = f"the state's carried[{index}]"
        if not isinstance(one, Mapping) or not {"values", "batch"} <= one.keys():
            raise StepError(f"{path} is {one!r:.80}, expected a dict with 'values' and 'batch'. {_HINT}")
        values, batch = one["values"], one["batch"]
        if not isinstance(values, list | tuple) or len(values) != num:
            raise StepError(
                f"{path}['values'] are {values!r:.80}, and the graph carries {num} "
                f"value{'' if num == 1 else 's'}. Build the model as it was when the state was saved."
            )
        for at, value in enumerate(values):
            if value is not None and not any(isinstance(x, Tensor) for x in pytree.tree_leaves(value)):
                raise StepError(f"{path}['values'][{at}] is {value!r:.80}, which has no tensors. {_HINT}")
        if batch is not None and not _is_count(batch):
            raise StepError(f"{path}['batch'] is {batch!r:.80}, expected a number of samples. {_HINT}")


def check_saved(state: Any, *, with_scaler: bool, with_schedule: bool, precision: str) -> None:
    """Raise if this is not the state of a step like this one, and name what is wrong.

    >>> check_saved({"steps": 3}, with_scaler=False, with_schedule=False, precision="fp32")
    Traceback (most recent call last):
    flodl.core.errors.StepError: the state has no 'updates', ...
    """
    if not isinstance(state, Mapping):
        raise StepError(f"the state is {a_type(state)}, not a mapping. {_HINT}")
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise StepError(f"the state has no {', '.join(map(repr, missing))}. {_HINT}")
    for key in _COUNTS:
        if not _is_count(state[key]):
            raise StepError(f"the state has {key}={state[key]!r}, expected an integer of at least 0. {_HINT}")
    _check_means(state["means"])
    _check_scaler(state["scaler"], with_scaler=with_scaler, precision=precision)
    schedule = state["schedule"]
    if (schedule is not None) != with_schedule:
        raise StepError(
            f"the state was taken {'without' if schedule is None else 'with'} a schedule. "
            "Resume with the schedule that the run had."
        )


def _check_means(means: Any) -> None:
    """Raise unless the means are lists of names, each with the sums of its weight and its values."""
    for entry in _require_list("means", means):
        pair = _require_list("means", entry)
        if len(pair) != 2:
            raise StepError(f"the state's means contain {entry!r}, expected names and their sums. {_HINT}")
        names, sums = _require_list("means", pair[0]), _require_list("means", pair[1])
        if not all(isinstance(name, str) for name in names) or not all(_is_number(sum_) for sum_ in sums):
            raise StepError(f"the state's means contain {entry!r}, expected names and their sums. {_HINT}")
        if len(sums) != len(names) + 1:
            raise StepError(f"the state's means contain {len(sums)} sums for {len(names)} names. {_HINT}")


def _check_scaler(scaler: Any, *, with_scaler: bool, precision: str) -> None:
    if (scaler is not None) != with_scaler:
        raise StepError(
            f"the state was taken {'without' if scaler is None else 'with'} a loss scaler, and "
            f"precision={precision!r} does not match. Resume with the same precision."
        )
    if scaler is None:
        return
    numbers = _require_list("scaler", scaler)
    if len(numbers) != 3 or not all(_is_number(number) for number in numbers):
        raise StepError(f"the state has scaler={scaler!r}, expected three numbers. {_HINT}")
    if not 0 <= numbers[0] < math.inf or not 0 <= numbers[1] < 2**31:
        raise StepError(f"the state has scaler={scaler!r}, expected a finite scale and a count. {_HINT}")


def _require_list(key: str, value: Any) -> list[Any] | tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return value
    raise StepError(f"the state's {key} contain {value!r}, expected a list. {_HINT}")


def _is_count(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and 0 <= int(value) < 2**63


def _is_number(value: Any) -> bool:
    if type(value) is bool or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 2**63
