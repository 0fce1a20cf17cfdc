"""Record how long tagged nodes take, and follow it over the epochs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from flodl.core import MetricError
from flodl.core.formats import a_type
from flodl.core.usage.calls import MetricCallError, explain_methods
from flodl.observe import Book, Trend, TrendGroup, export

from .core import Initial
from .drawing import GraphDrawing
from .metrics import GraphMetrics
from .plan.spec import Spec


@explain_methods(
    MetricCallError,
    examples={
        "end_epoch": "Write graph.end_epoch(); the graph counts the epochs itself.",
        "timing_trend": "Write graph.timing_trend('hidden').",
        "plot_timings_html": "Write graph.plot_timings_html('timings.html').",
        "export_timing_trends": "Write graph.export_timing_trends('timings.csv').",
    },
)
class GraphTimings(GraphMetrics, GraphDrawing):
    """Keep a history of the times that `profile` measured, one value per tag and epoch, in seconds."""

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__(spec, modules, initial)
        self._timings = Book()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_timings", Book())  # files of earlier versions do not contain it

    def collect_timings(self, *tags: str, example: Any = None) -> None:
        """Record the times of tags or tag groups from the last `profile`; without names, of all tags.

        With an `example` input, profile first. A node that did not run is left out.
        """
        profile = self._last_profile(example, "collect_timings")
        selected = [tag for name in tags for tag in self._group_members(name) or (name,)]
        if not tags:
            selected = [tag for tag in self.tags if tag in profile]
            if not selected:
                raise MetricError(
                    "collect_timings has no tag with a time. Tag a node, or name one by its path: "
                    "collect_timings('linear_1')."
                )
        rows = [(tag, profile[tag]) for tag in selected]
        for tag, row in rows:
            if row.calls:
                self._timings.record(tag, row.seconds)
        if self._is_between_epochs:
            self._timings.epoch = self._book.epoch
            self._timings.add_to_last_epoch()

    def flush_timings(self) -> None:
        """Close the times collected so far into one row of their history; `end_epoch` does it too."""
        self._timings.flush()

    def end_epoch(self) -> None:
        """End an epoch: flush all metrics and timings, including those of subgraphs, into its row.

        A graph ends the epoch of its subgraphs too; calling it on both ends the epoch once.
        """
        epoch = self._book.epoch
        super().end_epoch()
        if self._is_between_epochs:
            return
        for graph in self._graphs():
            if isinstance(graph, GraphTimings) and graph._timings.pending_names:
                graph._timings.epoch = max(epoch, graph._timings.epoch)
                graph._timings.end_epoch()

    def timing_trend(self, tag: str) -> Trend:
        """Return the history of the time of a tag, in seconds."""
        return self._timings.trend(check_name_of_time(tag))

    def timing_trends(self, *names: str) -> TrendGroup:
        """Return the histories of the times of tags or tag groups; without names, of all."""
        return self._timings.trends(self._timing_names(names))

    def reset_timing_trend(self, *names: str) -> None:
        """Delete the times of tags or tag groups, or of all."""
        self._timings.reset(self._timing_names(names))

    def plot_timings_html(
        self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()
    ) -> Path:
        """Write the histories of the times as one interactive HTML page that needs no network."""
        title = f"{self.label or 'flodl'}: seconds per node"
        return export.plot_html(path, self._timings.histories(self._timing_names(names)), title=title)

    def export_timing_trends(
        self, path: str | os.PathLike[str], names: tuple[str, ...] | list[str] = ()
    ) -> Path:
        """Write the histories of the times as a CSV table, one row per epoch."""
        return export.export_csv(path, self._timings.histories(self._timing_names(names)))

    def _timing_names(self, names: tuple[str, ...] | list[str] | str) -> list[str]:
        names = (names,) if isinstance(names, str) else names
        return [tag for name in names for tag in self._group_members(name) or (check_name_of_time(name),)]


def check_name_of_time(name: object) -> str:
    """Return the name of a tag or node if it is a string; otherwise raise."""
    if not isinstance(name, str):
        raise MetricError(f"the name of a time is {a_type(name)}. Pass tags one by one: 'hidden', 'output'.")
    return name
