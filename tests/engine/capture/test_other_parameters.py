"""A replay leaves the gradients of eager in parameters of the model that the optimizer does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.batch.tree import refill, static_copy, tensors_of
from flodl.engine.capture import runner as module
from flodl.engine.capture.runner import RecordedRunner
from flodl.engine.internals import body_of
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.state.snapshot import Snapshot


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


class Simulated:
    """A recording that is replayed by Python: it reads and writes the gradients of its own memory only."""

    mailbox = None

    def __init__(self, region: Callable[..., Any], micro: Micro, body: StepBody) -> None:
        self._region, self._static, self._body = region, static_copy(micro.inputs), body
        self._opens = micro.opens
        self.inputs = tensors_of(self._static)
        weights = [one.detach().clone() for one in self._leaves()]
        self.result = region(*self._static)
        # Recording executes nothing.
        for leaf, weight in zip(self._leaves(), weights):
            leaf.data.copy_(weight)
        self._grads = [one.grad for one in self._leaves()]

    def _leaves(self) -> list[Tensor]:
        return [*self._body.model.parameters()]

    def replay(self, batch: list[Tensor]) -> Any:
        refill(self.inputs, batch)
        seen = [one.grad for one in self._leaves()]
        for leaf, grad in zip(self._leaves(), self._grads):
            leaf.grad = None if self._opens else grad
        result = self._region.__wrapped__(*self._static)
        for leaf, own, before in zip(self._leaves(), self._grads, seen):
            if own is not None and leaf.grad is not own:
                own.copy_(leaf.grad)
            leaf.grad = before
        self.result.loss.copy_(result.loss)
        return self.result


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(module, "new_stream", lambda device: None)
    monkeypatch.setattr(RecordedRunner, "fast_update", lambda self: None)
    monkeypatch.setattr(
        RecordedRunner, "record_region", lambda self, region, micro: Simulated(region, micro, self.body)
    )


def windows(accumulate: int) -> Iterator[list[Micro]]:
    source = torch.Generator().manual_seed(0)
    phases = [Phase.ONLY]
    if accumulate > 1:
        phases = [Phase.FIRST, *[Phase.MIDDLE] * (accumulate - 2), Phase.LAST]
    for _ in range(5):
        batches = [(torch.randn(4, 3, generator=source), torch.randn(4, 2, generator=source)) for _ in phases]
        yield [
            Micro(batch, ("the only one",), phase, samples=4, share=1.0 / accumulate)
            for batch, phase in zip(batches, phases)
        ]


def new_parts() -> tuple[nn.Sequential, StepBody, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    step = TrainStep(model, torch.optim.SGD(model[0].parameters(), lr=0.1), mse, tier="eager")
    step(torch.ones(4, 3), torch.ones(4, 2))
    return model, body_of(step), torch.optim.SGD(model[2].parameters(), lr=0.1)


def record(body: StepBody, window: list[Micro]) -> RecordedRunner:
    batches = [micro.batch for micro in window]
    before = Snapshot(body, batches)
    for micro in window:
        EagerRunner(body).run(micro)
    before.prepare_recording(Snapshot(body, batches), body)
    before.restore()
    runner = RecordedRunner(body, update_inside=True)
    for micro in window:
        runner.learn(micro)
        before.restore()
    return runner


@pytest.mark.parametrize("clear", ["never", "by None", "by zero"])
@pytest.mark.parametrize("own_backward", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_second_optimizer_gets_the_gradients_of_eager(accumulate, own_backward: bool, clear: str) -> None:
    def train(is_recorded: bool) -> list[Tensor]:
        model, body, second = new_parts()
        runner = record(body, next(windows(accumulate))) if is_recorded else EagerRunner(body)
        for window in windows(accumulate):
            for micro in window:
                runner.run(micro)
                if own_backward:
                    model[2](torch.ones(2, 4)).square().mean().backward()
                second.step()
                if clear != "never":
                    second.zero_grad(set_to_none=clear == "by None")
        return [*model.parameters()]

    for found, wanted in zip(train(True), train(False), strict=True):
        assert torch.equal(found, wanted)


def test_a_step_with_gradients_outside_the_optimizer_has_no_fast_path() -> None:
    _, body, _ = new_parts()
    window = next(windows(1))
    runner = record(body, window)
    runner.run(window[0])
    assert runner.lane(turns=8) is None


def test_gradients_that_a_backward_of_the_user_leaves_are_cleared_by_a_replay() -> None:
    model, body, _ = new_parts()
    unused = nn.Linear(2, 2)
    model.append(nn.Identity())
    model[3].unused = unused
    body.find_others()
    (micro,) = next(windows(1))
    runner = record(body, [micro])
    unused(torch.ones(1, 2)).sum().backward()
    runner.run(micro)
    assert unused.weight.grad is None
