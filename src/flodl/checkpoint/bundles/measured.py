"""Which saves a metric can compare: a value of an evaluation belongs to the data it was measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from flodl.core import CheckpointError

from .bundle import read_bundle
from .manifest import Bundle

_EVALUATION = "eval_"
T = TypeVar("T")


def measured_alike(bundles: Sequence[Bundle], metric: str) -> list[Bundle]:
    """Return the bundles whose values of a metric belong to the same data as that of the newest one.

    The data is that which the trainer recorded; without a record, it counts as the same.
    """
    if not metric.startswith(_EVALUATION):
        return list(bundles)
    own: Any = None
    alike = []
    for bundle in sorted(bundles, key=lambda each: -each.step):
        known = _evaluation_data(bundle) if metric in bundle.metrics else None
        own = known if own is None else own
        if known in (None, own):
            alike.append(bundle)
    return alike[::-1]


def values_alike(history: Sequence[T], metric: str, since: int) -> Sequence[T]:
    """Return the epochs in which a metric was measured on the same data as in the latest epoch.

    `since` is the number of epochs before the evaluation data last changed.

    >>> values_alike([1, 2, 3], "eval_loss", 2), values_alike([1, 2, 3], "loss", 2)
    ([3], [1, 2, 3])
    """
    return history[since:] if metric.startswith(_EVALUATION) else history


def without_other_values(bundles: Sequence[Bundle], metrics: Iterable[str]) -> list[Bundle]:
    """Return the bundles without the values of metrics that belong to other data than the newest one."""
    others = {
        metric: {each.path for each in bundles} - {each.path for each in measured_alike(bundles, metric)}
        for metric in metrics
    }
    return [
        replace(
            bundle,
            metrics={
                name: value
                for name, value in bundle.metrics.items()
                if bundle.path not in others.get(name, ())
            },
        )
        for bundle in bundles
    ]


def _evaluation_data(bundle: Bundle) -> Any:
    """Return what a trainer recorded about the content of its evaluation data, None if nothing is known."""
    if "config" not in bundle.parts:
        return None
    try:
        record = read_bundle(bundle, parts=["config"], verify=False)["config"]
    except CheckpointError:
        return None
    data = record.get("eval_data") if isinstance(record, dict) else None
    return data.get("content") if isinstance(data, dict) else None
