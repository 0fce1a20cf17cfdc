"""The metrics that a trainer records in its graph, separate from those that the program records itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from flodl.core import MetricError

from .metrics import SECOND_END, GraphMetrics

__all__ = ["SECOND_END", "after_epoch", "check_not_recorded", "record_epoch", "start_run"]


def check_not_recorded(graph: GraphMetrics, names: Collection[str]) -> None:
    """Raise if the program recorded one of the names in this epoch, which a trainer records itself."""
    pending = {prefix + name for prefix, book in graph._books() for name in book.pending_names}
    if name := next((name for name in names if name in pending), None):
        raise MetricError(
            f"the metric {name!r} was recorded by the program, and the Trainer records {name!r} itself: "
            f"their mean would mix both. Leave it out, or use a different name: record('{name}_2', value)."
        )


def start_run(model: nn.Module) -> None:
    """Begin the trends of all graphs of a model again: an earlier run does not belong to them."""
    for module in model.modules():
        if isinstance(module, GraphMetrics):
            module._book.start_run()


def record_epoch(graph: GraphMetrics, metrics: Mapping[str, float]) -> None:
    """Record the metrics of an epoch, and end it."""
    check_not_recorded(graph, metrics)
    for name, value in metrics.items():
        graph.record(name, value)
    graph.end_epoch()


@contextmanager
def after_epoch(graph: object, metrics: Mapping[str, float]) -> Iterator[None]:
    """Add what is recorded inside to the epoch that has just ended, and ignore a second end of it."""
    if not isinstance(graph, GraphMetrics):
        yield
        return
    names = list(metrics)
    graph._is_between_epochs = True
    try:
        yield
        check_not_recorded(graph, names)
        for book in (graph._book, *graph._other_books()):
            book.add_to_last_epoch()
    finally:
        graph._is_between_epochs = False
