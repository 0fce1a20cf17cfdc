"""The labels of the graphs inside a chain: one graph each, and no tag of another node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from flodl.core import TagError

from ..paths import graphs_at

if TYPE_CHECKING:
    from ..graph import Graph
    from .draft import Draft


class Labels:
    """Which graph has which label, while a chain grows."""

    def __init__(self) -> None:
        self._graphs: dict[str, Graph] = {}

    def claim(self, targets: list[Any], tagged: Mapping[str, Draft]) -> None:
        """Take the labels inside new nodes, or refuse all of them."""
        claimed = dict(self._graphs)
        for target in targets:
            for label, graph in _labelled_in(target):
                if claimed.setdefault(label, graph) is not graph:
                    raise TagError(f"duplicate child label {label!r}: two graphs here have it. Rename one.")
                if label in tagged and not _holds(tagged[label].target, graph):
                    raise _is_tag(label)
        self._graphs = claimed

    def check_tag(self, name: str, node: Draft) -> None:
        """Refuse a tag that is the label of a graph in another node."""
        if name in self._graphs and not _holds(node.target, self._graphs[name]):
            raise _is_tag(name)


def _labelled_in(target: Any) -> Iterator[tuple[str, Graph]]:
    if isinstance(target, nn.Module):
        for _, graph in graphs_at("", target):
            if graph.label is not None:
                yield graph.label, graph


def _holds(target: Any, graph: Graph) -> bool:
    return isinstance(target, nn.Module) and any(module is graph for module in target.modules())


def _is_tag(label: str) -> TagError:
    return TagError(f"the label {label!r} of a subgraph is also a tag on another node. Rename one of them.")
