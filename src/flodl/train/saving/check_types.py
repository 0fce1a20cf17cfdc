"""Check the types of everything in a saved run that is not a weight, and that nothing else would check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from flodl.core import TrainError

Check = Callable[[Any], bool]


def check_types(parts: Mapping[str, Any]) -> None:
    """Raise TrainError if a part of a saved run is not what a trainer saves.

    >>> check_types({"history": [{"loss": 0.5}], "hooks": 3})
    Traceback (most recent call last):
    flodl.core.errors.TrainError: the part 'hooks' of the saved run is not what a trainer saves: 3. ...
    """
    for name, check in _PARTS.items():
        if name in parts and not check(parts[name]):
            raise _malformed(name, parts[name])
    trainer: Mapping[str, Any] = parts["trainer"]
    for name, check in _TRAINER.items():
        # Older bundles lack some.
        if name not in trainer and name in _OPTIONAL:
            continue
        if name not in trainer or not check(trainer[name]):
            raise _malformed(f"trainer.{name}", trainer.get(name, "missing"))


def _malformed(path: str, value: Any) -> TrainError:
    return TrainError(
        f"the part {path!r} of the saved run is not what a trainer saves: {value!r:.80}. Nothing was loaded. "
        "Use another bundle: resume= takes its folder."
    )


def _none_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(key, str) for key in value)
        and all(map(check, value.values()))
    )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number that fits a float, a string, None, or a container of those."""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return abs(value) < 2**1000
    return value is None or isinstance(value, float | str)


def _is_open_row(value: Any) -> bool:
    numbers = _dict_of(lambda item: _is_plain(item) and type(item) in (int, float))
    return numbers(value) and "loss" in value


def _is_hook(value: Any) -> bool:
    # Older bundles lack the hash of the settings.
    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        return False
    return isinstance(value[0], str) and all(isinstance(one, str) for one in value[2:])


def _are_modes(value: Any) -> bool:
    names = _list_of(_is_str)
    return isinstance(value, Mapping) and all(
        names(value.get(kind)) for kind in ("frozen", "evaluating", "stilled")
    )


def _is_fit_call(value: Any) -> bool:
    if not isinstance(value, Mapping) or value.keys() != {"epochs", "optimizer", "lr_scale"}:
        return False
    settings = _list_of(_is_mapping)
    return _is_count(value["epochs"]) and settings(value["optimizer"]) and _is_scale(value["lr_scale"])


def _is_scale(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value < math.inf)


_PARTS: dict[str, Check] = {
    "model": lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    "step": _is_mapping,
    "rng": _is_mapping,
    "data": _none_or(_is_mapping),
    "trainer": _is_mapping,
    "average": _none_or(_dict_of(_is_tensor)),
    "hooks": _list_of(_is_hook),
    "history": _list_of(_dict_of(_is_plain)),
    "graphs": _is_mapping,
    "buffers": _none_or(_dict_of(_is_tensor)),
    "outside": _none_or(_dict_of(_is_tensor)),
    "config": _none_or(_is_mapping),
}
_TRAINER: dict[str, Check] = {
    "optimizer": _is_str,
    "precision": _is_str,
    "schedule": _is_str,
    "epoch_step": _is_count,
    "open_row": _none_or(_is_open_row),
    "measured_at": _none_or(_is_count),
    "spent_s": _is_duration,
    "modes": _are_modes,
    "num_rollbacks": _is_count,
    "skipped_in_a_row": _is_count,
    "modes_at_start": _none_or(_are_modes),
    "optimizer_at_start": _none_or(_list_of(_is_mapping)),
    "used_config": _none_or(_is_mapping),
    "limit": _none_or(_is_count),
    "evaluated_since": _is_count,
    "fit_calls": _list_of(_is_fit_call),
    "optimizer_at_call": _none_or(_list_of(_is_mapping)),
    "structural_hashes": _none_or(_dict_of(_is_str)),
    "structures": _none_or(_dict_of(_dict_of(_is_str))),
    "parameters": _none_or(_list_of(_list_of(_is_str))),
    "labels": _none_or(_list_of(_is_str)),
}
_OPTIONAL = {
    "spent_s", "num_rollbacks", "skipped_in_a_row", "modes_at_start", "optimizer_at_start", "limit",
    "fit_calls", "optimizer_at_call", "structural_hashes", "structures", "parameters", "labels",
    "used_config", "evaluated_since",
}  # fmt: skip
