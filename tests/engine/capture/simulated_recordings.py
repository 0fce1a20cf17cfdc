"""Recordings that Python replays, so that the tests need no CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.batch.tree import refill, static_copy, tensors_of
from flodl.engine.capture import runner as module
from flodl.engine.capture.runner import RecordedRunner
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.state.snapshot import Snapshot


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


class Simulated:
    """A recording that is replayed by Python: it reads and writes the gradients of its own memory only."""

    mailbox = None

    def __init__(self, region: Callable[..., Any], micro: Micro, body: StepBody) -> None:
        self._region, self._static, self.body = region, static_copy(micro.inputs), body
        self._opens = micro.opens
        self.inputs = tensors_of(self._static)
        weights = [one.detach().clone() for one in self._leaves()]
        self.result = region(*self._static)
        # Recording executes nothing.
        for leaf, weight in zip(self._leaves(), weights):
            leaf.data.copy_(weight)
        self._grads = [one.grad for one in self._leaves()]

    def _leaves(self) -> Iterable[Tensor]:
        return self.body.model.parameters()

    def replay(self, batch: list[Tensor]) -> Any:
        refill(self.inputs, batch)
        seen = [one.grad for one in self._leaves()]
        for leaf, grad in zip(self._leaves(), self._grads):
            leaf.grad = None if self._opens else grad
        result = self.run_region()
        for leaf, own, before in zip(self._leaves(), self._grads, seen):
            if own is not None and leaf.grad is not own:
                own.copy_(leaf.grad)
            leaf.grad = before
        self.result.loss.copy_(result.loss)
        return self.result

    def run_region(self) -> Any:
        """Run the recorded region again; a subclass restores what a replay does not change."""
        return self._region.__wrapped__(*self._static)


def simulate_recordings(monkeypatch: pytest.MonkeyPatch, kind: type[Simulated] = Simulated) -> None:
    """Let recorded runners simulate their recordings."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(module, "new_stream", lambda device: None)
    monkeypatch.setattr(RecordedRunner, "fast_update", lambda self: None)
    monkeypatch.setattr(
        RecordedRunner, "record_region", lambda self, region, micro: kind(region, micro, self.body)
    )


def record(body: StepBody, window: list[Micro], *, update_inside: bool = True) -> RecordedRunner:
    """Record a window, as a trial does; nothing changes."""
    batches = [micro.batch for micro in window]
    before = Snapshot(body, batches)
    for micro in window:
        EagerRunner(body).run(micro)
        body.undo.detach_carried()
    before.prepare_recording(Snapshot(body, batches), body)
    before.restore()
    runner = RecordedRunner(body, update_inside=update_inside)
    for micro in window:
        runner.learn(micro)
        before.restore()
    return runner


def phases(accumulate: int) -> list[Phase]:
    """Return the phases of the micro-batches of a window."""
    if accumulate == 1:
        return [Phase.ONLY]
    return [Phase.FIRST, *[Phase.MIDDLE] * (accumulate - 2), Phase.LAST]
