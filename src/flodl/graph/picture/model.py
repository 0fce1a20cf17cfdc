"""The content of a picture without positions: boxes in nested clusters, and edges between boxes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Family = Literal[
    "input", "output", "layer", "norm", "activation", "dropout", "plain", "merge", "route", "state", "port"
]
ClusterKind = Literal["graph", "loop", "gate", "switch", "map"]
EdgeKind = Literal["stream", "ref", "state", "carry", "again", "route"]


@dataclass(frozen=True)
class Timing:
    """The time of all calls together, and its share of the whole."""

    seconds: float
    share: float
    calls: int


@dataclass(frozen=True)
class Box:
    """One node, or one part of a control node; `path` is its identity."""

    path: str
    family: Family
    title: str
    settings: str = ""
    tags: tuple[str, ...] = ()
    num_parameters: int = 0
    frozen: bool = False
    text: str = ""
    timing: Timing | None = None


@dataclass(frozen=True)
class Cluster:
    """A graph or a control node with its content, in execution order."""

    path: str
    kind: ClusterKind
    title: str
    settings: str = ""
    tags: tuple[str, ...] = ()
    num_parameters: int = 0
    frozen: bool = False
    timing: Timing | None = None
    inside: tuple[Box | Cluster, ...] = ()


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes, named by their paths.

    `state` reads a value of the previous call, and `carry` stores it for the next; `again` is the next
    iteration of a loop; `route` carries the weights or the index.
    """

    tail: str
    head: str
    kind: EdgeKind = "stream"
    label: str = ""


@dataclass(frozen=True)
class Drawing:
    """A whole picture; `total_s` and `device` are set if it shows a profile."""

    title: str
    num_parameters: int
    inside: tuple[Box | Cluster, ...]
    edges: tuple[Edge, ...]
    total_s: float | None = None
    device: str = ""

    def boxes(self) -> Iterator[Box]:
        """Iterate over all boxes, from the outside in, in execution order."""
        return (item for item in _flat(self.inside) if isinstance(item, Box))

    def clusters(self) -> Iterator[Cluster]:
        """Iterate over all clusters, outer before inner."""
        return (item for item in _flat(self.inside) if isinstance(item, Cluster))


def _flat(items: tuple[Box | Cluster, ...]) -> Iterator[Box | Cluster]:
    for item in items:
        yield item
        if isinstance(item, Cluster):
            yield from _flat(item.inside)
