"""The update is recorded apart from forward and backward, compared with eager, and replayed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.batch.signature import same_layout
from flodl.engine.batch.tree import static_copy, tensors_of
from flodl.engine.capture.recording import Recording
from flodl.engine.capture.update_program import UpdateProgram
from flodl.engine.errors import NotCapturable
from flodl.engine.internals import body_of


class Setup:
    """A step with static gradients, as a recording of forward and backward would leave them."""

    def __init__(self, record=None, **settings) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        step = TrainStep(
            self.model,
            optimizer,
            lambda model, x: model(x).square().mean(),
            reduce_gradients=lambda gradients, weight: None,
            **settings,
        )
        step(torch.ones(4, 3))  # creates the state of the optimizer
        self.body = body_of(step)
        self.num_replays = 0
        self.program = UpdateProgram(self.body, record or self.record)
        self.grads = [torch.zeros_like(p) for p in self.model.parameters()]
        self.recorded = None

    def record(self, region):
        # On a CPU, a replay runs the region again.
        def replay() -> None:
            self.num_replays += 1
            region()

        return replay

    def update(self, number: int) -> None:
        for parameter, grad in zip(self.model.parameters(), self.grads):
            parameter.grad = grad.fill_(number)
        self.body.bad.zero_()
        self.recorded = self.program.run(self.grads, self.recorded)

    @property
    def weights(self) -> torch.Tensor:
        return self.model.weight.detach().clone()


def test_updates_are_replayed_with_the_numbers_of_eager():
    ours = Setup(clip_norm=0.5)
    eager = Setup(lambda region: pytest.fail("nothing is recorded"), clip_norm=0.5)
    eager.program.refusal = "for the comparison"
    for number in range(1, 6):
        ours.update(number)
        eager.update(number)
        assert torch.equal(ours.weights, eager.weights)
        assert torch.equal(ours.body.updater.grad_norm, eager.body.updater.grad_norm)
    # Once to compare, then once per update.
    assert ours.num_replays == 1 + 4
    assert ours.program.refusal is None


def test_an_update_that_differs_stays_in_python():
    setup = Setup(lambda region: lambda: None)
    eager = Setup(lambda region: lambda: None)
    eager.program.refusal = "for the comparison"
    for number in range(1, 4):
        setup.update(number)
        eager.update(number)
        assert torch.equal(setup.weights, eager.weights)
    assert setup.recorded is None
    assert "the recorded update differs from eager in" in setup.program.refusal


def test_an_update_that_cannot_be_recorded_stays_in_python():
    def refuse(region):
        raise NotCapturable("a host sync")

    setup = Setup(refuse)
    before = setup.weights
    setup.update(1)
    assert setup.program.refusal == "the update cannot be recorded: a host sync"
    assert not torch.equal(setup.weights, before)


def test_an_update_with_the_gradient_of_another_rank_runs_in_python():
    setup = Setup()
    setup.update(1)
    assert setup.num_replays == 1
    other = torch.full_like(setup.grads[1], 2.0)
    setup.model.bias.grad = other
    setup.recorded = setup.program.run(setup.grads, setup.recorded)
    assert setup.num_replays == 1
    setup.update(2)
    assert setup.num_replays == 2


def test_a_skipped_update_is_not_recorded():
    setup = Setup()
    before = setup.weights
    for parameter, grad in zip(setup.model.parameters(), setup.grads):
        parameter.grad = grad.fill_(torch.nan)
    assert setup.program.run(setup.grads, None) is None
    assert torch.equal(setup.weights, before)
    setup.update(1)
    assert setup.recorded is not None


class CountingGraph:
    """Stands in for a CUDA graph."""

    def __init__(self) -> None:
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


def test_a_recording_without_inputs_is_replayed():
    graph = CountingGraph()
    recording = Recording(graph, tensors_of(static_copy(())), "result", (), same_layout([]))
    assert recording.replay(()) == "result"
    assert graph.num_replays == 1
