"""Captured and compiled steps of graphs that carry values from call to call: as eager, whatever happens."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph
from flodl.engine import TrainStep
from flodl.engine.internals import controller_of
from flodl.graph import graph_state, load_graph_state, without_carried_values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = torch.device("cuda")


class Cell(nn.Module):
    """A GRU cell whose hidden state is carried."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        return self.cell(x, hidden)


class Mixing(nn.Linear):
    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return super().forward(x).tanh() + 0.5 * before


def new_model() -> Graph:
    """Two carried values, one of them in a nested graph; one starts unset, the other from zeros."""
    torch.manual_seed(0)
    inner = FlowBuilder(Cell(16)).using("hidden").tag("hidden").label("inner").build()
    flow = FlowBuilder(nn.Linear(8, 16)).through(inner).through(Mixing(16, 16))
    flow = flow.using(before="mixed", init="zeros").tag("mixed")
    return flow.through(nn.Linear(16, 4)).build().to(DEVICE)


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def over_time(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Call the model several times in one step, as for a sequence."""
    return torch.stack([mse(model, x.roll(turn, 0), y) for turn in range(3)]).mean()


def starting_afresh(model: Graph, x: Tensor, y: Tensor) -> Tensor:
    model.reset_state()
    return over_time(model, x, y)


def carried(model: Graph) -> list[Tensor]:
    """Return copies of all carried values."""
    state = graph_state(model)
    return [value.clone() for part in state.values() for value in part["carried"] if value is not None]


class Run:
    def __init__(self, tier: str, step_fn: Callable[..., Tensor] = mse, **settings) -> None:
        self.model = new_model()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.step = TrainStep(self.model, optimizer, step_fn, tier=tier, **settings)
        self.source = torch.Generator(DEVICE).manual_seed(1)
        self.found: list[list[Tensor]] = []
        self.num_fast = 0

    def train(self, rows: int = 8, scale: float = 1.0) -> None:
        x = torch.randn(rows, 8, device=DEVICE, generator=self.source) * scale
        y = torch.randn(rows, 4, device=DEVICE, generator=self.source)
        self.num_fast += controller_of(self.step).lane is not None
        loss = self.step(x, y)
        self.found.append([loss, *carried(self.model)])


def reset(run: Run) -> None:
    run.model.reset_state()


def detach(run: Run) -> None:
    run.model.detach_state()


def evaluate(run: Run) -> None:
    run.model.eval()
    with torch.no_grad(), without_carried_values(run.model):
        run.model(torch.ones(5, 8, device=DEVICE))
    run.model.train()


def call(run: Run) -> None:
    """A call that continues the state; what it returns is not overwritten later."""
    with torch.no_grad():
        run.found.append([run.model(torch.ones(8, 8, device=DEVICE))])


def ragged(run: Run) -> None:
    run.model.reset_state()
    run.train(rows=5)
    run.model.reset_state()


def save_and_load(run: Run) -> None:
    saved = graph_state(run.model)
    run.train()
    run.train()
    load_graph_state(run.model, saved, DEVICE)


def load_a_copy(run: Run) -> None:
    load_graph_state(run.model, copy.deepcopy(graph_state(run.model)), DEVICE)


def keep(run: Run) -> None:
    restore = run.model.keep_state()
    run.train()
    run.train()
    restore(torch.ones((), device=DEVICE))


def not_finite(run: Run) -> None:
    run.train(scale=torch.nan)
    run.train(scale=torch.nan)


def half_finite(run: Run) -> None:
    """With accumulate=2, the first half of the window is fine."""
    run.train()
    run.train(scale=torch.nan)


EVENTS = [reset, detach, evaluate, call, ragged, save_and_load, load_a_copy, keep, not_finite, half_finite]


def trained(tier: str, events: list[Callable[[Run], None]], num_steps: int = 200, **settings) -> Run:
    run = Run(tier, **settings)
    accumulate = settings.get("accumulate", 1)
    for number in range(num_steps // accumulate):
        for _ in range(accumulate):
            run.train()
        # First a long time without, so that there is a recording and a fast path.
        if number >= 24 and number % 7 == 0 and events:
            event = events[number // 7 % len(events)]
            if event is ragged and accumulate > 1:
                event = reset
            event(run)
    run.found.append([*map(torch.Tensor.detach, run.model.parameters())])
    return run


def assert_same(
    run: Run, wanted: Run, *, rtol: float = 0.0, atol: float = 0.0, equal_nan: bool = False
) -> None:
    """Compare everything that two runs have found, by default exactly."""
    assert len(run.found) == len(wanted.found)
    for number, (mine, theirs) in enumerate(zip(run.found, wanted.found)):
        assert len(mine) == len(theirs), number
        for index, (found, value) in enumerate(zip(mine, theirs)):
            where = f"value {index} at {number}"
            torch.testing.assert_close(found, value, rtol=rtol, atol=atol, equal_nan=equal_nan, msg=where)


def assert_like_eager(tier: str, events: list[Callable[[Run], None]], **settings) -> Run:
    run = trained(tier, events, **settings)
    assert run.step.tier == tier, run.step.report()
    assert run.step.report().captures > 0
    wanted = trained("eager", events, **settings)
    tolerance = {} if tier == "captured" else {"rtol": 2e-3, "atol": 2e-4}
    assert_same(run, wanted, equal_nan=True, **tolerance)
    return run


@pytest.mark.parametrize("step_fn", [mse, over_time, starting_afresh])
@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_200_steps_match_eager(tier: str, step_fn: Callable[..., Tensor]) -> None:
    run = assert_like_eager(tier, [], step_fn=step_fn)
    assert run.num_fast > 100


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_they_match_eager_whatever_happens_in_between(tier: str) -> None:
    run = assert_like_eager(tier, EVENTS, num_steps=400)
    assert run.num_fast > 50


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_captured_step_matches_eager_after_an_event(event: Callable[[Run], None], accumulate: int) -> None:
    assert_like_eager("captured", [event], num_steps=120, accumulate=accumulate)


def test_windows_of_two_micro_batches_match_eager_compiled() -> None:
    assert_like_eager("compiled", [reset, evaluate, call, not_finite, half_finite], accumulate=2)


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_mixed_precision_matches_eager(tier: str) -> None:
    run, wanted = (trained(one, [reset, evaluate], precision="bf16") for one in (tier, "eager"))
    assert run.step.tier == tier, run.step.report()
    tolerance = 0.0 if tier == "captured" else 0.1
    assert_same(run, wanted, rtol=tolerance, atol=tolerance)


def test_an_optimizer_that_cannot_be_recorded_matches_eager() -> None:
    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= float(group["lr"]) * parameter.grad

    def run_with(tier: str) -> Run:
        run = Run(tier)
        optimizer = Own(run.model.parameters(), lr=1e-2)
        run.step = TrainStep(run.model, optimizer, mse, tier=tier)
        for number in range(80):
            run.train(scale=torch.nan if number in (50, 51, 60) else 1.0)
        return run

    run, wanted = run_with("captured"), run_with("eager")
    assert run.step.tier == "captured", run.step.report()
    assert_same(run, wanted, equal_nan=True)


def test_a_tag_that_is_the_value_of_the_previous_call_matches_eager() -> None:
    class Delay(nn.Module):
        def forward(self, x: Tensor, before: Tensor) -> Tensor:
            return before

    def tags(tier: str) -> list[Tensor]:
        torch.manual_seed(0)
        flow = FlowBuilder(nn.Linear(8, 4)).tag("last").fork(Delay()).using(before="out", init="zeros")
        model = flow.tag("delayed").through(nn.Linear(4, 4)).tag("out").build().to(DEVICE)
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-2), mse, tier=tier)
        source, found = torch.Generator(DEVICE).manual_seed(1), []
        for _ in range(60):
            x = torch.randn(8, 8, device=DEVICE, generator=source)
            step(x, torch.ones(8, 4, device=DEVICE))
            found.append(model.tagged("delayed"))
        assert step.tier == tier, step.report()
        return found

    for number, (mine, theirs) in enumerate(zip(tags("captured"), tags("eager"), strict=True)):
        assert torch.equal(mine, theirs), number


def test_steps_that_all_start_without_carried_values_stay_eager_and_say_so() -> None:
    run = Run("captured")
    for _ in range(70):
        run.model.reset_state()
        run.train()
    assert run.step.tier == "eager"
    assert "started without carried values" in run.step.report().reason


def test_two_batch_sizes_are_both_recorded() -> None:
    def alternating(tier: str) -> Run:
        run = Run(tier)
        for number in range(240):
            if number % 12 == 0:
                run.model.reset_state()
            run.train(rows=8 if number // 12 % 2 == 0 else 6)
        return run

    run, wanted = alternating("captured"), alternating("eager")
    assert run.step.report().captures >= 2, run.step.report()
    assert_same(run, wanted)
