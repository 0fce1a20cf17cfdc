"""What a run forgets when its evaluation data changes: the best values so far are not comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flodl.checkpoint import Policy

from .patience import is_evaluated
from .standard import MetricWatcher


def begin_again(hooks: Iterable[Any]) -> list[str]:
    """Let callbacks forget the best values of other evaluation data, and describe which did.

    >>> from flodl.train import EarlyStopping
    >>> stopping = EarlyStopping("eval_loss")
    >>> begin_again([stopping]), stopping.is_over(0.5), begin_again([stopping])
    ([], False, ["EarlyStopping('eval_loss') starts from scratch: its best value was computed on ..."])
    """
    watching = [hook for hook in hooks if isinstance(hook, MetricWatcher) and is_evaluated(hook.metric)]
    return [
        hook.restart
        for hook in watching
        if hook.begin_again("its best value was computed on different evaluation data")
    ]


def compared_anyway(keep: Policy, history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe a policy that compares saves whose metrics are those of different evaluation data."""
    names = [name for name in keep.metrics if is_evaluated(name) and any(name in row for row in history)]
    return [f"keep={keep} compares values of different evaluation data"] if names else []
