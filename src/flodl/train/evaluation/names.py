"""The names of the values of a run: none is reserved, and none replaces another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from flodl.core import TrainError
from flodl.core.formats import a_type

# What an evaluation adds to the names of its values.
PREFIX = "eval_"
# The number of skipped updates in a row of the history, with nan="skip".
SKIPPED = "skipped_updates"
# The same on one of several ranks, where each trains batches of its own; the rank follows.
SKIPPED_ON = f"{SKIPPED}.rank"
# A value that is NaN on one of several ranks; the rank, a dot and the name follow.
NAN_ON = "nan.rank"


def check_names(values: Iterable[str], *, metrics: Mapping[str, Any] | None = None) -> None:
    """Raise if a value of the step function has a reserved name, or that of a metric object."""
    for name in values:
        if name in ("loss", "lr", "epoch", SKIPPED) or str(name).startswith(PREFIX):
            raise TrainError(
                f"the step function returns a value named {name!r}, which is reserved for the history. "
                "Choose a different name."
            )
        if metrics and name in metrics:
            raise TrainError(
                f"the step function returns a value named {name!r}, and metrics= has "
                f"{a_type(metrics[name])} of that name. Both would be reported as 'eval_{name}'. Rename one "
                "of them."
            )


def check_metric_names(metrics: Iterable[str]) -> None:
    """Raise if the name of a metric object has the prefix that an evaluation adds.

    >>> check_metric_names(["f1"])
    """
    for name in metrics:
        if str(name).startswith(PREFIX):
            raise TrainError(
                f"metrics= has the name {name!r}, and an evaluation adds {PREFIX!r} itself, so it would be "
                f"reported as '{PREFIX}{name}'. Write {str(name).removeprefix(PREFIX)!r}."
            )


def with_prefix(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of an evaluation, as hooks have left them, under the names of the history.

    >>> with_prefix({"loss": 1.0, "eval_auc": 0.5})
    {'eval_loss': 1.0, 'eval_auc': 0.5}
    """
    named: dict[str, float] = {}
    for name, value in values.items():
        number = as_number(name, value)
        full = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
        if full in named:
            short = full.removeprefix(PREFIX)
            raise TrainError(
                f"the metrics of an evaluation have both {short!r} and {full!r}, which is its name in the "
                "history. Rename one of them."
            )
        named[full] = number
    return named


def check_number(name: str, value: Tensor) -> None:
    """Raise if a named value is not a single number."""
    if value.numel() != 1:
        raise TrainError(
            f"the step function returns {name!r} with shape {tuple(value.shape)}. Return one number per name."
        )


def as_number(name: Any, value: Any) -> float:
    """Return a value that a hook gave to a metric as a plain number, or raise.

    >>> as_number("f1", 0.5), as_number("f1", Tensor([0.5]))
    (0.5, 0.5)
    """
    if not isinstance(name, str):
        raise TrainError(f"a hook adds the metric {name!r}. Use a string as its name.")
    try:
        if not isinstance(value, str | bytes):
            return value if type(value) in (int, float) else float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TrainError(f"a hook sets the metric {name!r} to {value!r:.80}. Set it to one number.")


def merge_values(*parts: tuple[str, Mapping[str, float]]) -> dict[str, float]:
    """Merge values, each with a description of its origin; raise if two have the same name.

    >>> merge_values(("a value", {"loss": 1.0}), ("a metric", {"f1": 0.5}))
    {'loss': 1.0, 'f1': 0.5}
    """
    merged: dict[str, float] = {}
    origins: dict[str, str] = {}
    for origin, values in parts:
        for name, value in values.items():
            if name in merged:
                raise TrainError(
                    f"{origins[name]} and {origin} are both named {name!r}, and would both be reported as "
                    f"'eval_{name}'. Rename one of them."
                )
            merged[name], origins[name] = value, origin
    return merged
