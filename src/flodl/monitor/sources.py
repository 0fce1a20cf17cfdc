"""What tells events by itself while a run lasts: pauses of the collector, and the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .events import Event
from .pauses import Pauses


class Source(Protocol):
    """Something that emits events from its start to its stop."""

    def start(self) -> object:
        """Begin to tell."""

    def stop(self) -> object:
        """Tell no more."""


def started(emit: Callable[[Event], object], *, resources: bool, rank: int) -> list[Source]:
    """Start the sources of a run; reading the machine can be left out."""
    sources: list[Source] = [Pauses(emit, rank=rank)]
    if resources:
        from .resources import ResourceSampler

        sources.append(ResourceSampler(emit, rank=rank))
    for source in sources:
        source.start()
    return sources
