"""Draw loops, gates, switches and maps: their parts, and the path of the stream through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..control import Gate, Loop, Map, Switch
from ..control.control import Control
from ..plan.signature import accepts
from .model import Box, Cluster, Edge

Takes = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class Inside:
    """The content of a cluster, and the boxes where the stream enters and leaves and references arrive."""

    items: tuple[Box | Cluster, ...]
    entry: str
    exit: str
    takes: Takes


@dataclass(frozen=True)
class Drawn:
    """A box or cluster, with the same three facts."""

    item: Box | Cluster
    entry: str
    exit: str
    takes: Takes


class Artist(Protocol):
    """The object that draws the parts and collects the edges."""

    edges: list[Edge]

    def part(self, target: Callable[..., Any], path: str, *, role: str, decides: bool = False) -> Drawn:
        """Draw a part of a control node."""


def inside_of(control: Control, path: str, artist: Artist) -> Inside:
    """Draw the parts of a control node and the edges between them."""
    if isinstance(control, Loop):
        return _loop(control, path, artist)
    if isinstance(control, Gate):
        joint = Box(f"{path}.(sum)", "merge", "Σ", text="the sum of the experts, weighted by the router")
        return _routed(control, path, artist, joint)
    if isinstance(control, Switch):
        title = f"1 of {control.num_branches}"
        joint = Box(f"{path}.(choice)", "merge", title, text="the branch that the selector chooses")
        return _routed(control, path, artist, joint)
    assert isinstance(control, Map)
    body = artist.part(control.body, f"{path}.body", role="body")
    return Inside((body.item,), body.entry, body.exit, body.takes)


def settings_of_control(control: Control) -> str:
    """Return the settings of a control node for the heading of its cluster."""
    fixed = isinstance(control, Loop) and control.condition is None
    return f"×{control.turns}" if fixed else control.describe()


def _loop(loop: Loop, path: str, artist: Artist) -> Inside:
    """A flow chart: `while` decides before the body, `until` after it."""
    body = artist.part(loop.body, f"{path}.body", role="body")
    if loop.condition is None:
        artist.edges.append(Edge(body.exit, body.entry, "again"))
        return Inside((body.item,), body.entry, body.exit, body.takes)
    condition = artist.part(loop.condition, f"{path}.condition", role="condition", decides=True)
    first, second = (condition, body) if loop.asked == "before" else (body, condition)
    artist.edges.append(Edge(first.exit, second.entry))
    artist.edges.append(Edge(second.exit, first.entry, "again"))
    takes = _receivers([(loop.body, body), (loop.condition, condition)])
    return Inside((first.item, second.item), first.entry, condition.exit, takes)


def _routed(control: Gate | Switch, path: str, artist: Artist, joint: Box) -> Inside:
    """The stream goes to the router or selector and to all choices, whose outputs meet in a joint."""
    fan = Box(f"{path}.(in)", "port", "", text="every part receives the stream")
    (role, decider), *choices = control.parts().items()
    deciding = artist.part(decider, f"{path}.{role}", role=role, decides=True)
    drawn = [artist.part(choice, f"{path}.{name}", role=name) for name, choice in choices]
    for part in [deciding, *drawn]:
        artist.edges.append(Edge(fan.path, part.entry))
    artist.edges.append(Edge(deciding.exit, joint.path, "route"))
    for part in drawn:
        artist.edges.append(Edge(part.exit, joint.path))
    items = (fan, deciding.item, *(part.item for part in drawn), joint)
    return Inside(items, fan.path, joint.path, deciding.takes)


def _receivers(parts: list[tuple[Callable[..., Any], Drawn]]) -> Takes:
    """Return the boxes for a loop's references: its body, its condition, or both."""

    def takes(name: str) -> tuple[str, ...]:
        return tuple(
            head for target, drawn in parts if accepts(target).takes(name) for head in drawn.takes(name)
        )

    return takes
