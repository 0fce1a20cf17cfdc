"""Tags, traces and collected values after a step: the same on every tier that a CPU has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, LearnedHalt
from flodl.engine import TrainStep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def emitting(x: Tensor, *, emit) -> Tensor:
    emit("size", x.abs().mean())
    return 0.5 * x


def new_model() -> Graph:
    torch.manual_seed(0)
    inner = FlowBuilder(nn.Linear(3, 5)).tag("wide").label("inner").build()
    return (
        FlowBuilder(inner)
        .loop_body(emitting)
        .for_n(2)
        .tag("grown")
        .loop_body(nn.Linear(5, 5))
        .until_cond(LearnedHalt(5), 2)
        .tag("thought")
        .through(nn.Linear(5, 2))
        .tag("out")
        .build()
    )


def reads(model: Graph) -> dict[str, Tensor]:
    tags = {tag: model.tagged(tag) for tag in ("inner.wide", "grown", "thought", "out")}
    for trace in ("grown.size", "thought.halt"):
        tags.update({f"{trace} {turn}": value for turn, value in enumerate(model.traces(trace))})
    return {name: value.detach().clone() for name, value in tags.items()}


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def with_auxiliary_loss(model: Graph, x: Tensor, y: Tensor) -> Tensor:
    return mse(model, x, y) + 0.1 * model.tagged("inner.wide").square().mean()


def trained(tier: str, step_fn=mse) -> tuple[str, list[dict[str, Tensor]], list[float]]:
    """Return the tier at the end, what was read after each step, and the collected metric."""
    model = new_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier=tier)
    source, found = torch.Generator().manual_seed(1), []
    for epoch in range(3):
        for size in (4, 4, 4, 4, 2):
            step(torch.randn(size, 3, generator=source), torch.zeros(size, 2))
            found.append(reads(model))
            model.collect("inner.wide", reduce="norm")
            model.end_step()
        if epoch == 1:
            model(torch.zeros(7, 3))  # a call that is not part of the training
        model.end_epoch()
    return step.tier, found, model.trend("inner.wide").values


@pytest.mark.parametrize("step_fn", [mse, with_auxiliary_loss])
def test_tags_traces_and_collected_values_are_those_of_the_last_step(quick_compiler, step_fn) -> None:
    tier, found, collected = trained("compiled", step_fn)
    assert tier == "compiled"
    _, wanted, expected = trained("eager", step_fn)
    assert collected == pytest.approx(expected, rel=1e-5)
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert mine.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(mine[name], theirs[name], msg=f"{name} after step {number}")


def test_metrics_that_the_step_function_records_are_not_recorded_twice_by_a_trial(quick_compiler) -> None:
    def recording(model: Graph, x: Tensor, y: Tensor) -> Tensor:
        loss = mse(model, x, y)
        model.record("loss", loss)
        return loss

    model = new_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), recording, tier="compiled")
    source = torch.Generator().manual_seed(1)
    losses = [step(torch.randn(4, 3, generator=source), torch.zeros(4, 2)).item() for _ in range(12)]
    model.end_epoch()
    assert model.trend("loss").latest == pytest.approx(sum(losses) / 12, rel=1e-6)
