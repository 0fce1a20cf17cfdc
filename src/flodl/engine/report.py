"""What the step decided, once each, in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from flodl.core import log

from .device.memory import MemoryUse


@dataclass(frozen=True)
class Event:
    """One decision: at which step, of what kind, and why."""

    step: int
    kind: str
    reason: str


@dataclass
class Journal:
    """Events in order; what may come with every batch is said once."""

    events: list[Event] = field(default_factory=list)
    _said: set[tuple[str, str]] = field(default_factory=set)

    def say(self, step: int, kind: str, reason: str, *, again: bool = False) -> None:
        """Note an event, unless the same was said before and need not be said `again`."""
        if (kind, reason) in self._said and not again:
            return
        self._said.add((kind, reason))
        self.events.append(Event(step, kind, reason))
        log.verbose("step %d: %s: %s", step, kind, reason)


def split_words(pieces: int) -> str:
    """Say that batches are cut because memory ran out, and what that asks of the loss."""
    return (
        f"out of memory: each batch runs as {pieces} pieces, with the gradients of the whole where the loss "
        "is a mean over the samples (a sum over them would count for less)"
    )


@dataclass(frozen=True)
class StepReport:
    """Which tier runs, why, what it cost and what it gains.

    `compiles` and `promotion_cost_s` count what was tried, also where nothing came of it.

    >>> print(StepReport(tier="eager", reason="the model is on cpu", steps=3, updates=3))
    tier      eager: the model is on cpu
    steps     3 (3 updates)
    """

    tier: str
    reason: str
    steps: int
    updates: int
    captures: int = 0
    compiles: int = 0
    eager_step_s: float | None = None
    step_s: float | None = None
    promotion_cost_s: float | None = None
    first_step_s: float | None = None
    skipped: int = 0
    memory: MemoryUse | None = None
    events: tuple[Event, ...] = ()

    @property
    def gain(self) -> float | None:
        """How many times faster than eager the present tier was measured to be."""
        if self.tier == "eager" or self.eager_step_s is None or not self.step_s:
            return None
        return self.eager_step_s / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """Give the report as plain data, ready for JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "events"}
        memory = None if self.memory is None else asdict(self.memory)
        events = [asdict(event) for event in self.events]
        return {**plain, "memory": memory, "gain": self.gain, "events": events}

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped as not finite" if self.skipped else ""
        lines = [
            f"tier      {self.tier}: {self.reason}",
            f"steps     {self.steps} ({self.updates} updates{skipped})",
        ]
        if self.promotion_cost_s is not None:
            compiles = f", compiled {_times(self.compiles)}" if self.compiles else ""
            lines.append(
                f"cost      {self.promotion_cost_s:.2f} s to prepare, {self.captures} recordings{compiles}"
            )
        if self.gain is not None:
            eager_ms, here_ms = (self.eager_step_s or 0) * 1000, (self.step_s or 0) * 1000
            lines.append(f"gain      {self.gain:.2f}× ({eager_ms:.3f} ms eager, {here_ms:.3f} ms now)")
        if self.first_step_s is not None:
            lines.append(f"first     {self.first_step_s * 1000:.0f} ms to the first step")
        if self.memory is not None:
            lines.append(f"memory    {self.memory}")
        lines += [f"step {event.step}: {event.kind}: {event.reason}" for event in self.events]
        return "\n".join(lines)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
