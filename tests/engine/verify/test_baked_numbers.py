"""A trial finds numbers that a recording keeps, although it makes the recording again for each window."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.program.runner import EagerRunner
from flodl.engine.verify import candidate

NUMBER = {"recorded": None}


class Recording(EagerRunner):
    """Repeats the number that it drew when it was made, as a recording does."""

    update_inside = records_update = draws_on_host = False
    update_program = None

    def __init__(self, body, **_) -> None:
        super().__init__(body)
        self.numbers: dict[object, float] = {}

    def fits(self, micro) -> bool:
        return micro.signature in self.numbers

    def what_changed(self) -> None: ...

    def lane(self, turns: int) -> None: ...

    def learn(self, micro) -> None:
        if not self.fits(micro):
            self.numbers[micro.signature] = number()

    def forget_all(self) -> None:
        self.numbers.clear()

    def run_without_update(self, micro):
        NUMBER["recorded"] = self.numbers[micro.signature]
        try:
            return super().run_without_update(micro)
        finally:
            NUMBER["recorded"] = None


def number() -> float:
    return random.random() if NUMBER["recorded"] is None else NUMBER["recorded"]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the step itself, which is not compiled."""
    monkeypatch.setattr(candidate, "compile_program", lambda body, **_: {None: body})
    monkeypatch.setattr(candidate, "compile_by_running", lambda *_, **__: None)
    for name in ("CompiledRunner", "RecordedRunner"):
        monkeypatch.setattr(candidate, name, Recording)


def trained(step_fn) -> TrainStep:
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step_fn, tier="compiled")
    for _ in range(12):
        step(torch.randn(8, 4))
    return step


def scaled(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean() * (1 + number())


def test_a_number_that_changes_in_every_step_is_found(recordings) -> None:
    step = trained(scaled)
    assert step.tier == "eager"
    assert "differs from eager" in step.report().reason


def test_a_step_without_such_a_number_is_accepted(recordings) -> None:
    step = trained(lambda model, x: model(x).square().mean())
    assert step.tier == "compiled", step.report()
