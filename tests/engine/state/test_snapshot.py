"""What a snapshot restores."""

from __future__ import annotations

import torch
from torch import nn

from flodl.engine.batch.signature import signature
from flodl.engine.optimizer.prepare import prepare
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.settings import StepSettings
from flodl.engine.state.snapshot import Snapshot
from flodl.engine.verify.gradients import relative_difference


class Counting(torch.optim.SGD):
    """Counts its updates in plain numbers, in a group and in the state, as some optimizers do."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"]:
                self.state[parameter]["seen"] = self.state[parameter].get("seen", 0) + 1


def test_numbers_that_an_optimizer_keeps_on_the_host_are_restored():
    model = nn.Linear(3, 2)
    optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    body = StepBody.create(model, optimizer, loss, StepSettings(), prepare(optimizer))
    batch = (torch.ones(4, 3),)
    micro = Micro(batch, signature(batch), Phase.ONLY, 4)
    runner = EagerRunner(body)
    runner.run(micro)
    before = Snapshot(body)
    runner.run(micro)
    before.restore()
    assert optimizer.param_groups[0]["count"] == 1
    assert {state["seen"] for state in optimizer.state.values()} == {1}


def test_imaginary_parts_of_gradients_are_compared() -> None:
    assert relative_difference([torch.tensor([1 + 1j])], [torch.tensor([1 - 5j])], torch.device("cpu")) > 1
