"""The decisions of a step as events with a cause and a reason, and the report over them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from flodl.core import log
from flodl.core.formats import counted

from .device.memory import MemoryUse


class Cause(StrEnum):
    """Why a step made a decision, for programs; the reason of the event is for people."""

    PROMOTED = "promoted"  # a faster tier passed the comparison with eager
    REFUSED = "refused"  # a faster tier cannot be used
    RETRY = "retry"  # a comparison was disturbed and starts again later
    INVALIDATED = "invalidated"  # something changed that the fast tier depends on
    SLOWER = "slower"  # the faster tier was measured slower
    RAGGED_BATCH = "ragged_batch"  # the last batch of an epoch is smaller
    OTHER_SHAPE = "other_shape"  # a batch differs in shape from what was prepared
    TOO_MANY_SHAPES = "too_many_shapes"  # no further shapes are recorded
    OUT_OF_MEMORY = "out_of_memory"  # batches are split
    SAMPLE_COUNT = "sample_count"  # the number of samples is ambiguous
    TUNING_LIMIT = "tuning_limit"  # tuning ran out of time
    OPEN_WINDOW = "open_window"  # an epoch ended within an accumulation window
    NOT_FINITE = "not_finite"  # updates were skipped
    PROBABLE_MISTAKE = "probable_mistake"  # what the loop does is probably not what was meant


# The kinds of events that say which tier runs, or will run; the others are notes about the training.
_ABOUT_TIERS = ("eager", "captured", "compiled", "tune")
_ABOUT_BATCHES = (Cause.SAMPLE_COUNT, Cause.RAGGED_BATCH, Cause.OUT_OF_MEMORY)


@dataclass(frozen=True)
class Event:
    """One decision: at which step, the tier or event it is about, why, and a machine-readable cause."""

    step: int
    kind: str
    reason: str
    cause: Cause
    # Whether it was printed as a warning.
    is_warning: bool = False

    @property
    def is_about_tier(self) -> bool:
        """Whether it is about the tier of the step, and not a note about samples, for example."""
        return self.kind in _ABOUT_TIERS

    @property
    def is_about_batches(self) -> bool:
        """Whether it says how batches were handled if there was a choice, as a note for the user."""
        return self.cause in _ABOUT_BATCHES and not self.is_about_tier and not self.is_warning


@dataclass
class Journal:
    """Events in order; one that may repeat with every batch is recorded once."""

    events: list[Event] = field(default_factory=list)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(
        self,
        step: int,
        kind: str,
        cause: Cause,
        reason: str,
        *,
        repeat: bool = False,
        is_warning: bool = False,
    ) -> None:
        """Record an event, unless it was recorded before and need not `repeat`."""
        if (kind, reason) in self._seen and not repeat:
            return
        self._seen.add((kind, reason))
        self.events.append(Event(step, kind, reason, cause, is_warning))
        log.verbose("step %d: %s: %s", step, kind, reason)

    def warn(self, step: int, kind: str, cause: Cause, reason: str) -> None:
        """Record an event and print it as a warning, once."""
        if (kind, reason) not in self._seen:
            self.add(step, kind, cause, reason, is_warning=True)
            log.warn("TrainStep: %s.", reason)


def split_words(pieces: int) -> str:
    """Return the reason of the event that batches are split because memory ran out."""
    return (
        f"out of memory: each batch runs in {pieces} pieces, with the gradients of the whole batch if the "
        "loss is a mean over the samples (a sum would be scaled down)"
    )


@dataclass(frozen=True)
class StepReport:
    """Which tier runs, why, what it cost and what it gains.

    `compiles` and `promotion_cost_s` include attempts that failed. Of the `updates`, `skipped` were not
    applied, because something was not finite, and `applied` were.
    `pending` micro-batches wait for the rest of their window; `dropped` batches were left out (tail='drop').

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
    pending: int = 0
    dropped: int = 0
    # What the schedule lacks to change the learning rate, how high the rates of a function were, or "".
    schedule: str = ""
    memory: MemoryUse | None = None
    events: tuple[Event, ...] = ()

    @property
    def applied(self) -> int:
        """How many of the updates changed the parameters."""
        return self.updates - self.skipped

    @property
    def gain(self) -> float | None:
        """How many times faster than eager the current tier was measured to be."""
        if self.tier == "eager" or self.eager_step_s is None or not self.step_s:
            return None
        return self.eager_step_s / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "events"}
        memory = None if self.memory is None else asdict(self.memory)
        events = [asdict(event) for event in self.events]
        return {**plain, "applied": self.applied, "memory": memory, "gain": self.gain, "events": events}

    def __str__(self) -> str:
        parts = [counted(self.updates, "update")]
        parts += [f"{self.skipped} of them skipped as not finite"] if self.skipped else []
        lines = [f"tier      {self.tier}: {self.reason}", f"steps     {self.steps} ({', '.join(parts)})"]
        if self.pending:
            what = "micro-batch waits" if self.pending == 1 else "micro-batches wait"
            lines.append(f"pending   {self.pending} {what} for a full window; step.flush() applies them")
        if self.dropped:
            lines.append(f"dropped   {counted(self.dropped, 'ragged batch')}, because of tail='drop'")
        if self.schedule:
            lines.append(f"schedule  {self.schedule}")
        if self.promotion_cost_s is not None:
            compiles = f", compiled {_times(self.compiles)}" if self.compiles else ""
            recordings = counted(self.captures, "recording")
            lines.append(f"cost      {self.promotion_cost_s:.2f} s to prepare, {recordings}{compiles}")
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
