"""Eager steps that get by with less memory: a batch that does not fit runs in pieces."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from .events import Journal, split_words
from .hygiene import no_waiting
from .outcome import Outcome
from .runners import EagerRunner, Micro


class SplittingRunner(EagerRunner):
    """Run eagerly; out of memory, cut the batch into more pieces and keep the mathematics."""

    def run_and_tell(self, micro: Micro, journal: Journal, step: int) -> Outcome:
        """Run one micro-batch, and the update where its window ends; say where it had to be cut."""
        body = self.body
        if not micro.opens:
            body.note_statistics()
        while True:
            try:
                with no_waiting() if body.settings.strict else nullcontext():
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
            body.update(micro.correction)
        return outcome
