"""Check the labels of the graphs in a chain: each belongs to one graph and is not a tag elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from flodl.core import TagError

from ..core import GraphCore
from ..paths import graphs_at
from .draft import Draft


class Labels:
    """The labels in use while a chain grows, with their graphs."""

    def __init__(self) -> None:
        self._graphs: dict[str, GraphCore] = {}

    def claim(self, targets: list[Any], tagged: Mapping[str, Draft]) -> None:
        """Register the labels inside new nodes; raise and register none if one is taken."""
        claimed = dict(self._graphs)
        for target in targets:
            for label, graph in _labeled_in(target):
                if claimed.setdefault(label, graph) is not graph:
                    raise TagError(f"duplicate child label {label!r}: two graphs here have it. Rename one.")
                if label in tagged and not _contains(tagged[label].target, graph):
                    raise _tag_error(label)
        self._graphs = claimed

    def check_tag(self, name: str, node: Draft) -> None:
        """Raise if a tag is the label of a graph in another node."""
        if name in self._graphs and not _contains(node.target, self._graphs[name]):
            raise _tag_error(name)


def _labeled_in(target: Any) -> Iterator[tuple[str, GraphCore]]:
    if isinstance(target, nn.Module):
        for _, graph in graphs_at("", target):
            if graph.label is not None:
                yield graph.label, graph


def _contains(target: Any, graph: GraphCore) -> bool:
    return isinstance(target, nn.Module) and any(module is graph for module in target.modules())


def _tag_error(label: str) -> TagError:
    return TagError(f"the label {label!r} of a subgraph is also a tag on another node. Rename one of them.")
