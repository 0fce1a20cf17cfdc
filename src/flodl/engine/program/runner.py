"""The eager runner, and the micro-batches that every runner takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..batch.signature import Signature
from .program import Outcome, StepBody

Phase = Literal["only", "first", "middle", "last"]


@dataclass(frozen=True)
class Micro:
    """One micro-batch: where it stands in its window, its part of it, and what makes up for ragged ones."""

    batch: tuple[Any, ...]
    shape: Signature
    phase: Phase
    share: float
    correction: float = 1.0
    ragged: bool = False

    @property
    def opens(self) -> bool:
        """Whether gradients start anew here."""
        return self.phase in ("only", "first")

    @property
    def closes(self) -> bool:
        """Whether the optimizer updates after it."""
        return self.phase in ("only", "last")


def phase_of(position: int, accumulate: int) -> Phase:
    """Give the phase of a micro-batch by its position in the window."""
    if accumulate == 1:
        return "only"
    if position == 0:
        return "first"
    return "last" if position == accumulate - 1 else "middle"


class EagerRunner:
    """Run the body as it is written."""

    def __init__(self, body: StepBody) -> None:
        self.body = body
        self.captures = 0

    def fits(self, micro: Micro) -> bool:
        """Everything fits."""
        return True

    def learn(self, micro: Micro) -> None:
        """There is nothing to prepare."""

    def what_changed(self) -> str | None:
        """Python notices every change by itself."""
        return None

    def show_grads(self) -> None:
        """The gradients are where they always are."""

    def run(self, micro: Micro) -> Outcome:
        """Run one micro-batch, and the update where its window ends."""
        outcome = self.run_without_update(micro)
        if micro.closes:
            self.body.update(micro.correction)
        return outcome

    def run_without_update(self, micro: Micro) -> Outcome:
        """Run forward and backward of one micro-batch."""
        if micro.opens:
            self.body.clear()
        return self.body.micro(micro.batch, micro.share, opens=micro.opens)
