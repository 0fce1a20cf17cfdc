"""The eager runners, and the micro-batches that every runner takes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ..batch.signature import Signature
from ..device.gc_and_sync import no_waiting
from ..report import Cause, Journal, split_words
from .oom import split_further
from .outcome import Outcome
from .program import StepBody


class Phase(Enum):
    """The position of a micro-batch in its accumulation window."""

    ONLY = "only"
    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"


@dataclass(frozen=True)
class Micro:
    """One micro-batch: its position and weight in the window, and a correction for ragged windows."""

    batch: tuple[Any, ...]
    signature: Signature
    phase: Phase
    samples: int
    share: float = 1.0
    correction: float = 1.0
    ragged: bool = False
    # The rows that are real, where the batch was padded.
    mask: Tensor | None = None
    # The real samples of its window up to here.
    window_samples: int = 0
    # The form of the values that graphs carry into it; part of the signature too.
    carried: Signature = ()

    @property
    def opens(self) -> bool:
        """Whether gradients start from zero here."""
        return self.phase is Phase.ONLY or self.phase is Phase.FIRST

    @property
    def closes(self) -> bool:
        """Whether the optimizer updates after it."""
        return self.phase is Phase.ONLY or self.phase is Phase.LAST

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What a recording reads: the batch, followed by the mask if there is one."""
        return self.batch if self.mask is None else (*self.batch, self.mask)


class EagerRunner:
    """Runs the body from Python, as it is written."""

    def __init__(self, body: StepBody) -> None:
        self.body = body
        self.captures = 0

    def fits(self, micro: Micro) -> bool:
        """Return True: every micro-batch fits."""
        return True

    def learn(self, micro: Micro) -> None:
        """Do nothing: there is nothing to prepare."""

    def what_changed(self) -> str | None:
        """Return None: Python notices every change by itself."""
        return None

    def show_grads(self) -> None:
        """Do nothing: the gradients are in `.grad`."""

    def run(self, micro: Micro) -> Outcome:
        """Run one micro-batch, and the update if its window ends."""
        outcome = self.run_without_update(micro)
        if micro.closes:
            self.body.update(micro.correction, samples=micro.window_samples)
        return outcome

    def run_without_update(self, micro: Micro) -> Outcome:
        """Run forward and backward of one micro-batch."""
        opens, body = micro.opens, self.body
        if opens:
            body.start_window()
        return body.micro_batch(micro.batch, micro.share, samples=micro.samples, mask=micro.mask, opens=opens)


class SplittingRunner(EagerRunner):
    """Runs eagerly; when memory runs out, splits the batch into more pieces."""

    def run_and_report(self, micro: Micro, journal: Journal, step: int) -> Outcome:
        """Run one micro-batch, and the update if its window ends; report if it had to be split."""
        body, opens = self.body, micro.opens
        calls = body.updater.calls
        if not opens:
            if calls.left is not None:
                calls.check_kept()
            body.undo.start_micro_batch()
        strict = body.settings.strict
        while True:
            try:
                if strict:
                    with no_waiting():
                        outcome = self.run_without_update(micro)
                else:
                    outcome = self.run_without_update(micro)
                break
            except torch.OutOfMemoryError as error:
                what_to_do = split_further(body, micro.batch, micro.samples, opens=opens)
                if what_to_do is not None:
                    error.add_note(what_to_do)
                    raise
            if body.device.type == "cuda":
                torch.cuda.empty_cache()
            journal.add(step, "split", Cause.OUT_OF_MEMORY, split_words(body.pieces))
        if micro.closes:
            if strict:
                update_strictly(body, micro.correction, micro.window_samples)
            else:
                body.update(micro.correction, samples=micro.window_samples)
        elif opens and calls.num_learning < 0:
            body.updater.remember_gradients(body.updater.with_gradient())
        if not micro.closes and calls.left is not None:
            calls.remember_again()
        return outcome


def update_strictly(body: StepBody, correction: float, samples: int) -> None:
    """Update; with strict=True a hidden host sync is an error, unless it is flodl's own."""
    with _strictly(body):
        body.update(correction, samples=samples)


def _strictly(body: StepBody) -> AbstractContextManager[None]:
    waits = body.reduction is not None or body.updater.host_waits()
    return no_waiting() if body.settings.strict and not waits else nullcontext()
