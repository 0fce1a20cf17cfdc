"""Sources that emit events on their own during a run: garbage collection pauses and hardware readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..events import Event
from .gc_pauses import GcPauses


class Source(Protocol):
    """Emits events between `start` and `stop`."""

    def start(self) -> object:
        """Start emitting events."""

    def stop(self) -> object:
        """Stop emitting events."""


def start_sources(emit: Callable[[Event], object], *, resources: bool, rank: int) -> list[Source]:
    """Start the sources of a run; `resources` includes the hardware readings."""
    sources: list[Source] = [GcPauses(emit, rank=rank)]
    if resources:
        from ..resources import ResourceSampler

        sources.append(ResourceSampler(emit, rank=rank))
    for source in sources:
        source.start()
    return sources
