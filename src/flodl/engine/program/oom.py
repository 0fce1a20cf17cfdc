"""Eager steps that get by with less memory: a batch that does not fit runs in pieces."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from ..device.gc_and_sync import no_waiting
from ..report import Journal, split_words
from .outcome import Outcome
from .program import StepBody
from .runner import EagerRunner, Micro


class SplittingRunner(EagerRunner):
    """Run eagerly; out of memory, cut the batch into more pieces and keep the mathematics."""

    def run_and_tell(self, micro: Micro, journal: Journal, step: int) -> Outcome:
        """Run one micro-batch, and the update where its window ends; say where it had to be cut."""
        body = self.body
        if not micro.opens:
            body.note_statistics()
        while True:
            try:
                with _strictly(body):
                    outcome = self.run_without_update(micro)
                break
            except torch.OutOfMemoryError as error:
                what_to_do = body.cut_finer(micro.batch, opens=micro.opens)
                if what_to_do is not None:
                    error.add_note(what_to_do)
                    raise
            if body.device.type == "cuda":
                torch.cuda.empty_cache()
            journal.say(step, "split", split_words(body.pieces))
        if micro.closes:
            update_strictly(body, micro.correction)
        return outcome


def update_strictly(body: StepBody, correction: float) -> None:
    """Update; with strict=True a hidden wait in it is an error, unless it is flodl's own."""
    with nullcontext() if body.asks_first() else _strictly(body):
        body.update(correction)


def _strictly(body: StepBody) -> AbstractContextManager[None]:
    return no_waiting() if body.settings.strict else nullcontext()
