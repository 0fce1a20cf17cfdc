"""A replay leaves the gradients of eager in parameters of the model that the optimizer does not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import EagerRunner, Micro

from .simulated_recordings import mse, phases, record, simulate_recordings


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_recordings(monkeypatch)


def windows(accumulate: int) -> Iterator[list[Micro]]:
    source = torch.Generator().manual_seed(0)
    for _ in range(5):
        batches = [
            (torch.randn(4, 3, generator=source), torch.randn(4, 2, generator=source))
            for _ in range(accumulate)
        ]
        yield [
            Micro(batch, ("the only one",), phase, samples=4, share=1.0 / accumulate)
            for batch, phase in zip(batches, phases(accumulate))
        ]


def new_parts() -> tuple[nn.Sequential, StepBody, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    step = TrainStep(model, torch.optim.SGD(model[0].parameters(), lr=0.1), mse, tier="eager")
    step(torch.ones(4, 3), torch.ones(4, 2))
    return model, body_of(step), torch.optim.SGD(model[2].parameters(), lr=0.1)


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
