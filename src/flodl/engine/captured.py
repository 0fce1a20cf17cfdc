"""The captured tier: one recording per phase and shape, replayed while nothing has changed."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch
from torch import Tensor

from .batch import Signature, num_samples, tensors_of
from .body import Outcome, StepBody
from .capture import Recording, new_stream, record
from .optimizer import host_settings

Phase = Literal["only", "first", "middle", "last"]


class CapturedTier:
    """Recordings of a step's phases.

    "only" is a whole step. With accumulation, "first" writes fresh gradients, "middle" adds to
    them, "last" adds and updates. Where the optimizer cannot be captured, its update runs outside.
    """

    def __init__(self, body: StepBody, *, update_inside: bool) -> None:
        self.body = body
        self.update_inside = update_inside
        self.cost_s = 0.0
        self._recordings: dict[tuple[Phase, float, Signature], Recording[Outcome]] = {}
        self._grads: list[Tensor | None] = []
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = new_stream(body.device)
        self._modules = list(body.model.modules())
        self._fingerprint = self.fingerprint()
        self._state = body.optimizer.state

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def knows(self, phase: Phase, share: float, shape: Signature) -> bool:
        """Say whether such a batch was recorded."""
        return (phase, share, shape) in self._recordings

    def fingerprint(self) -> tuple[Any, ...]:
        """Give what a recording takes for granted besides the shape of the batch."""
        body = self.body
        return (
            [p.requires_grad for p in body.parameters],
            [p.data_ptr() for p in body.parameters],
            [module.training for module in self._modules],
            host_settings(body.optimizer) if self.update_inside else (),
        )

    def what_changed(self) -> str | None:
        """Name what no longer is as it was recorded."""
        if self.body.optimizer.state is not self._state:
            return "the optimizer's state was loaded anew"
        now = self.fingerprint()
        if now == self._fingerprint:
            return None
        words = (
            "a parameter was frozen or thawed",
            "a parameter was moved or replaced",
            "a module was switched between training and evaluation",
            "a setting of the optimizer was changed",
        )
        return next(word for word, a, b in zip(words, self._fingerprint, now) if a != b)

    def record(self, phase: Phase, share: float, shape: Signature, batch: tuple[Any, ...]) -> None:
        """Record a phase for a shape; nothing is executed."""
        started = time.perf_counter()

        def region(*static: Any) -> Outcome:
            if phase in ("only", "first"):
                self.body.clear()
            outcome = self.body.micro(static, share)
            if phase in ("only", "last") and self.update_inside:
                self.body.update(outcome)
            return outcome

        if phase in ("middle", "last"):
            self._show_grads()
        recording = record(region, batch, pool=self._pool, stream=self._stream)
        self._recordings[phase, share, shape] = recording
        # The recording writes to these very tensors; as long as they live, their memory is not given away.
        self._grads = [p.grad for p in self.body.parameters]
        self.cost_s += time.perf_counter() - started

    def run(
        self, phase: Phase, share: float, shape: Signature, batch: tuple[Any, ...], correction: float
    ) -> Outcome:
        """Replay a phase on a batch."""
        outcome = self._recordings[phase, share, shape].replay(tensors_of(batch))
        if phase in ("only", "last") and not self.update_inside:
            self._show_grads()
            self.body.update(outcome, correction)
        return outcome

    def _show_grads(self) -> None:
        for parameter, grad in zip(self.body.parameters, self._grads):
            if parameter.grad is not grad:
                parameter.grad = grad


def phase_of(position: int, accumulate: int) -> Phase:
    """Give the phase of a micro-batch by its position in the window."""
    if accumulate == 1:
        return "only"
    if position == 0:
        return "first"
    return "last" if position == accumulate - 1 else "middle"


def is_tail(batch: tuple[Any, ...], usual_samples: int) -> bool:
    """Say whether a batch is a ragged last one."""
    return 0 < num_samples(batch) < usual_samples
