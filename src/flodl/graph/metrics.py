"""Record metrics of a graph, and read and export their history."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from flodl.core import MetricError, PathError, log, paths
from flodl.core.formats import a_type
from flodl.core.usage.calls import MetricCallError, explain_methods
from flodl.observe import Book, Trend, TrendGroup, export, unknown_metric

from .core import Initial
from .plan.spec import Spec
from .tree import GraphTree

Reduction = Literal["mean", "sum", "max", "min", "norm"]

_REDUCTIONS = {
    "mean": torch.mean,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "norm": torch.linalg.vector_norm,
}


SECOND_END = (
    "the Trainer ends the epoch of its graph itself: remove the call of end_epoch() from the program."
)


_EXAMPLES = {
    "end_epoch": "Write graph.end_epoch(); the graph counts the epochs itself.",
    "end_step": "Write graph.end_step(); the graph counts the steps itself.",
    "eta": "Write graph.eta(total_epochs).",
    "export_trends": "Write graph.export_trends('trends.csv').",
    "plot_html": "Write graph.plot_html('trends.html').",
    "record": "Write graph.record('loss', loss, weight=len(x)).",
    "train": "Write graph.train(), or graph.eval().",
    "write_log": "Write graph.write_log('run.log', total_epochs=10).",
    "trend": "Write graph.trend('loss').",
    "collect": "Write graph.collect('hidden', reduce='mean').",
    "latest_metrics": "Write graph.latest_metrics()['loss'].",
}
_ELSEWHERE = dict.fromkeys(("epochs", "num_epochs", "max_epochs"), "Write total_epochs=….")


@explain_methods(MetricCallError, elsewhere=_ELSEWHERE, examples=_EXAMPLES)
class GraphMetrics(GraphTree):
    """Record metrics; the name of a subgraph's metric starts with the subgraph's path."""

    _has_noted_empty_trend = False
    _has_noted_second_end = False
    # Whether a trainer has ended an epoch, and its hooks run.
    _is_between_epochs = False
    _has_noted_left_out = False

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__(spec, modules, initial)
        self._book = Book()

    def train(self, mode: bool = True) -> Self:
        """Switch all modules to training or evaluation mode, except those frozen with `eval_mode`."""
        super().train(mode)
        if mode:
            self._book.start()
        return self

    def record(self, path: str, value: Any, *, weight: float = 1.0) -> None:
        """Record a value of this step (a number or a tensor) without synchronizing with the device."""
        book, name = self._book_to_record(path)
        book.record(name, value, weight=weight)

    def collect(self, *tags: str, reduce: Reduction = "mean", weight: float = 1.0) -> None:
        """Record the last values of tags or tag groups, each reduced to one number on the device."""
        if not isinstance(reduce, str) or reduce not in _REDUCTIONS:
            raise MetricError(f"reduce={reduce!r:.60}. Use one of {', '.join(map(repr, _REDUCTIONS))}.")
        if not tags:
            raise MetricError(f"collect() names no tag. Name those to collect, for example {self._a_tag()}.")
        selected = [tag for name in tags for tag in self._group_members(name) or (name,)]
        values = [(tag, self._reduced(tag, reduce)) for tag in selected]
        for tag, value in values:
            book, name = self._book_of(tag)
            book.record(name, value, weight=weight, origin=f"collect(…, reduce={reduce!r})")

    def flush(self, *names: str) -> None:
        """Close the values recorded so far, of all or of some metrics, into one row of the history."""
        if not names:
            self._book.flush(children=self._other_books())
            return
        by_book: dict[Book, list[str]] = {}
        for path in names:
            book, name = self._recorded(path)
            by_book.setdefault(book, []).append(name)
        for book, metrics in by_book.items():
            book.epoch = max(book.epoch, self._book.epoch)
            book.flush(metrics)
            self._book.epoch = max(book.epoch, self._book.epoch)

    def flush_local(self, *names: str) -> None:
        """Close the values of this graph's own metrics, all or some, and leave those of subgraphs open."""
        for name in names:
            book, _ = self._recorded(name)
            if book is not self._book:
                raise MetricError(
                    f"flush_local({name!r}): the metric belongs to a subgraph. Call flush({name!r}), or "
                    "flush_local on the subgraph."
                )
        self._book.flush(names)

    def reset_trend(self, *names: str) -> None:
        """Delete the history of metrics by path, pattern or tag group, or of all metrics.

        Values that no epoch has closed yet are deleted too. The counts of epochs and steps stay.
        """
        for path in self._metric_names(names):
            book, name = self._recorded(path)
            book.reset([name])

    def end_step(self) -> None:
        """End a training step: detach the carried values and count the step."""
        self.detach_state()
        self._book.end_step()

    def end_epoch(self) -> None:
        """End an epoch: flush all metrics, including those of subgraphs, into the row of this epoch.

        A graph ends the epoch of its subgraphs too; calling it on both ends the epoch once.
        """
        if self._is_between_epochs:
            if not self._has_noted_second_end:
                self._has_noted_second_end = True
                log.warn("%s This call is ignored.", SECOND_END)
            return
        self._book.end_epoch(children=self._other_books())

    @property
    def epoch_count(self) -> int:
        """The number of epochs that have ended."""
        return self._book.epoch

    @property
    def step_count(self) -> int:
        """The number of steps that have ended."""
        return self._book.step

    def trend(self, path: str) -> Trend:
        """Return the history of a metric; once there are metrics, an unknown name raises."""
        book, name = self._recorded(path) if self._known_metrics() else self._book_of(path)
        if book.has_pending_only(name) and not self._has_noted_empty_trend:
            self._has_noted_empty_trend = True
            log.warn(
                "note: the trend '%s' is empty, because no epoch has ended since its values were recorded. "
                "Call end_epoch() after each epoch, or flush() without epochs.",
                path,
            )
        return book.trend(name)

    def trends(self, *names: str) -> TrendGroup:
        """Return the histories of metrics by path, pattern or tag group; without names, of all metrics."""
        self._book.fetch(*self._other_books())
        return TrendGroup({name: self.trend(name) for name in self._metric_names(names)})

    def latest_metrics(self) -> dict[str, float]:
        """Return the last closed value of every metric, with dotted names for subgraphs."""
        self._book.fetch(*self._other_books())
        return {
            prefix + name: value for prefix, book in self._books() for name, value in book.latest().items()
        }

    def eta(self, total_epochs: int) -> float:
        """Estimate the remaining seconds from the recent epochs; NaN before the first has ended."""
        return self._book.eta(total_epochs)

    def plot_html(self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()) -> Path:
        """Write the histories as one interactive HTML page that needs no network."""
        return export.plot_html(path, self._histories(names), title=self.label or "flodl")

    def export_trends(self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()) -> Path:
        """Write the histories as a CSV table, one row per epoch."""
        return export.export_csv(path, self._histories(names))

    def write_log(
        self,
        path: str | os.PathLike[str],
        total_epochs: int = 0,
        names: tuple[str, ...] | list[str] = (),
    ) -> Path:
        """Write the histories as lines of text, one per epoch, with durations and the remaining time."""
        return export.write_log(path, self._histories(names), self._book.durations, total_epochs)

    def _other_books(self) -> list[Book]:
        """Return the books of the graphs inside this one."""
        graphs = (module for module in self.modules() if isinstance(module, GraphMetrics))
        return [graph._book for graph in graphs if graph is not self]

    def _books(self, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Book]]:
        """Yield the book of every graph with its prefix; a graph that is used twice counts once."""
        seen = set() if seen is None else seen
        if id(self._book) in seen:
            return
        seen.add(id(self._book))
        yield prefix, self._book
        for name, child in self.subgraphs.items():
            yield from child._books(f"{prefix}{name}.", seen)

    def _book_of(self, path: str) -> tuple[Book, str]:
        *parents, name = paths.split(path)
        if not parents:
            return self._book, name
        try:
            return self.subgraph(".".join(parents))._book, name
        except PathError as error:
            raise PathError(
                f"the metric {path!r} belongs to {'.'.join(parents)!r}, which is not a subgraph. "
                f"{error.message}"
            ) from None

    def _book_to_record(self, path: str) -> tuple[Book, str]:
        book, name = self._book_of(path)
        if "*" in name:
            raise MetricError(f"the metric {path!r} is a pattern. Record each metric under its own name.")
        return book, name

    def _a_tag(self) -> str:
        tag = next((name for name in self.tags if name not in self._spec.internal_tags), "hidden")
        return f"collect({tag!r})"

    def _recorded(self, path: str) -> tuple[Book, str]:
        """Return the book of a metric and its name there, or raise with the most similar names."""
        book, name = self._book_of(path)
        if name not in book.names:
            raise unknown_metric(path, self._known_metrics())
        return book, name

    def _known_metrics(self) -> list[str]:
        return [prefix + name for prefix, book in self._books() for name in book.names]

    def _group_members(self, path: str) -> tuple[str, ...]:
        """Return the paths of the tags of a group, of this graph or of a subgraph; empty if it is none."""
        if not isinstance(path, str) or paths.is_glob(path):
            return ()
        *parents, name = paths.split(path)
        prefix = "".join(f"{parent}." for parent in parents)
        try:
            graph = self.subgraph(prefix[:-1]) if parents else self
        except PathError:
            return ()
        return tuple(prefix + member for member in graph._spec.group_members.get(name, ()))

    def _reduced(self, tag: str, reduce: Reduction) -> Tensor:
        value = self.tagged(tag)
        if value is None:
            raise MetricError(f"the tag {tag!r} has no value yet. Call the model before collect({tag!r}).")
        if not isinstance(value, Tensor) or value.numel() == 0:
            what = "an empty tensor" if isinstance(value, Tensor) else f"{a_type(value)}"
            raise MetricError(f"the tag {tag!r} is {what}. collect needs a tensor with at least one element.")
        detached = value.detach()
        if not (detached.is_floating_point() or detached.is_complex()):
            detached = detached.double() if detached.device.type != "mps" else detached.float()
        reduced: Tensor = _REDUCTIONS[reduce](detached)
        return reduced

    def _metric_names(self, names: tuple[str, ...] | list[str] | str) -> list[str]:
        names = (names,) if isinstance(names, str) else names
        if not isinstance(names, list | tuple):
            raise MetricError(f"the names of metrics are {names!r:.60}. Pass a list, as in ['loss'].")
        known = self._known_metrics()
        if not names:
            return known
        found: list[str] = []
        for name in names:
            if not isinstance(name, str):
                raise MetricError(
                    f"the name of a metric must be a string, got {type(name).__name__}. Pass several names "
                    "one by one: trends('loss', 'accuracy')."
                )
            if name in known:
                found.append(name)
            elif members := self._group_members(name):
                found += members
            elif paths.is_glob(name):
                matching = [metric for metric in known if paths.matches(name, metric)]
                if not matching:
                    hint = paths.suggestion(name, known, known_as="metrics")
                    raise PathError(f"no metric matches {name!r}. {hint}")
                found += matching
            else:
                found.append(name)
        return list(dict.fromkeys(found))

    def _histories(self, names: tuple[str, ...] | list[str]) -> dict[str, dict[int, float]]:
        selected = self._metric_names(names)
        self._book.fetch(*self._other_books())
        histories = {}
        for path in selected:
            book, name = self._recorded(path)
            histories[path] = book.history(name)
        return histories
