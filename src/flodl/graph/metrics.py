"""The part of a graph that records metrics and asks how they go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flodl.core import MetricError, PathError, paths
from flodl.observe import Book, Trend, TrendGroup, export

from .paths import as_graph

Reduction = Literal["mean", "sum", "max", "min", "norm"]

_REDUCTIONS = {
    "mean": torch.mean,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "norm": torch.linalg.vector_norm,
}


class Observed(nn.Module):
    """The part of `Graph` that keeps a book; a metric of a subgraph has its path in front."""

    _book: Book

    def record(self, path: str, value: Any, *, weight: float = 1.0) -> None:
        """Note a value of this step (a number or a tensor) without waiting for the device."""
        book, name = self._book_of(path)
        book.record(name, value, weight=weight)

    def collect(self, *tags: str, reduce: Reduction = "mean", weight: float = 1.0) -> None:
        """Note the last values of tags or tag groups, each reduced to one number on the device."""
        if reduce not in _REDUCTIONS:
            raise MetricError(f"reduce={reduce!r}. Use one of {', '.join(map(repr, _REDUCTIONS))}.")
        graph = as_graph(self)
        members = graph._spec.group_members
        wanted = [tag for name in tags for tag in members.get(name, (name,))]
        values = [(tag, self._reduced(tag, reduce)) for tag in wanted]
        for tag, value in values:
            self.record(tag, value, weight=weight)

    def flush(self, *names: str) -> None:
        """Close the values recorded so far, of all metrics or of some, into one row of history."""
        if not names:
            self._book.flush(children=self._other_books())
            return
        chosen: dict[Book, list[str]] = {}
        for path in names:
            book, name = self._book_of(path)
            chosen.setdefault(book, []).append(name)
        for book, metrics in chosen.items():
            book.epoch = max(book.epoch, self._book.epoch)
            book.flush(metrics)
            self._book.epoch = max(book.epoch, self._book.epoch)

    def end_step(self) -> None:
        """Close a training step: cut carried values from their history and count."""
        graph = as_graph(self)
        graph.detach_state()
        self._book.end_step()

    def end_epoch(self) -> None:
        """Close an epoch: flush everything, here and below, into the row of this epoch."""
        self._book.end_epoch(children=self._other_books())

    @property
    def epoch_count(self) -> int:
        """How many epochs were ended."""
        return self._book.epoch

    @property
    def step_count(self) -> int:
        """How many steps were ended."""
        return self._book.step

    def trend(self, path: str) -> Trend:
        """Give the history of a metric; one that was never recorded is empty."""
        book, name = self._book_of(path)
        return book.trend(name)

    def trends(self, *names: str) -> TrendGroup:
        """Give the histories of metrics named by path, pattern or tag group; all of them if none is named."""
        self._book.fetch(*self._other_books())
        return TrendGroup({name: self.trend(name) for name in self._metric_names(names)})

    def latest_metrics(self) -> dict[str, float]:
        """Give the last closed value of every metric, with dotted names for subgraphs."""
        self._book.fetch(*self._other_books())
        return {
            prefix + name: value for prefix, book in self._books() for name, value in book.latest().items()
        }

    def eta(self, total_epochs: int) -> float:
        """Estimate the seconds that are left, from the recent epochs."""
        return self._book.eta(total_epochs)

    def plot_html(self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()) -> Path:
        """Write the histories as one interactive page that needs no network."""
        graph = as_graph(self)
        return export.plot_html(path, self._histories(names), title=graph.label or "flodl")

    def export_trends(self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()) -> Path:
        """Write the histories as a CSV table, one row per epoch."""
        return export.export_csv(path, self._histories(names))

    def write_log(
        self,
        path: str | os.PathLike[str],
        total_epochs: int = 0,
        names: tuple[str, ...] | list[str] = (),
    ) -> Path:
        """Write the histories as lines of text, one per epoch, with durations and what is left."""
        return export.write_log(path, self._histories(names), self._book.durations, total_epochs)

    def _other_books(self) -> list[Book]:
        """Give the books of the graphs inside this one."""
        return [graph._book for graph in as_graph(self)._graphs() if graph._book is not self._book]

    def _books(self, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Book]]:
        """Give the book of every graph with its prefix; a graph that sits in two places counts once."""
        seen = set() if seen is None else seen
        if id(self._book) in seen:
            return
        seen.add(id(self._book))
        yield prefix, self._book
        graph = as_graph(self)
        for name, child in graph.subgraphs.items():
            yield from child._books(f"{prefix}{name}.", seen)

    def _book_of(self, path: str) -> tuple[Book, str]:
        *parents, name = paths.split(path)
        if not parents:
            return self._book, name
        graph = as_graph(self)
        try:
            return graph.subgraph(".".join(parents))._book, name
        except PathError as error:
            raise PathError(
                f"the metric {path!r} belongs to {'.'.join(parents)!r}, which is no subgraph. {error.message}"
            ) from None

    def _reduced(self, tag: str, reduce: Reduction) -> Tensor:
        graph = as_graph(self)
        value = graph.tagged(tag)
        if value is None:
            raise MetricError(f"the tag {tag!r} has no value yet. Call the model before collect({tag!r}).")
        if not isinstance(value, Tensor) or value.numel() == 0:
            what = "an empty tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise MetricError(f"the tag {tag!r} holds {what}; only tensors with elements can be collected.")
        detached = value.detach()
        if not (detached.is_floating_point() or detached.is_complex()):
            detached = detached.double() if detached.device.type != "mps" else detached.float()
        reduced: Tensor = _REDUCTIONS[reduce](detached)
        return reduced

    def _metric_names(self, names: tuple[str, ...] | list[str] | str) -> list[str]:
        names = (names,) if isinstance(names, str) else names
        graph = as_graph(self)
        known = [prefix + name for prefix, book in self._books() for name in book.names]
        if not names:
            return known
        found: list[str] = []
        for name in names:
            if name in graph._spec.group_members and name not in known:
                found += graph._spec.group_members[name]
            elif paths.is_glob(name):
                fitting = [metric for metric in known if paths.matches(name, metric)]
                if not fitting:
                    hint = paths.suggestion(name, known, known_as="metrics")
                    raise PathError(f"no metric fits {name!r}. {hint}")
                found += fitting
            else:
                found.append(name)
        return list(dict.fromkeys(found))

    def _histories(self, names: tuple[str, ...] | list[str]) -> dict[str, dict[int, float]]:
        chosen = self._metric_names(names)
        self._book.fetch(*self._other_books())
        histories = {}
        for path in chosen:
            book, name = self._book_of(path)
            if name not in book.names:
                known = self._metric_names(())
                hint = paths.suggestion(path, known, known_as="metrics")
                raise MetricError(f"no metric {path!r} was recorded. {hint}")
            histories[path] = book.history(name)
        return histories
