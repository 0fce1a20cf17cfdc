"""A recording feeds back what graphs carry from call to call. The replays are simulated on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph
from flodl.engine import TrainStep
from flodl.engine.batch.signature import signature
from flodl.engine.capture.runner import RecordedRunner
from flodl.engine.capture.static_state import StaticState
from flodl.engine.errors import NotCapturable
from flodl.engine.internals import body_of
from flodl.engine.program.carried import Carried
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.program.undo import ForwardUndo
from flodl.graph import graph_state, load_graph_state, without_carried_values

from .simulated_recordings import Simulated, mse, phases, record, simulate_recordings

CPU = torch.device("cpu")


class Mixing(nn.Linear):
    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        out = super().forward(x).tanh()
        return out if before is None else out + 0.5 * before


def new_model() -> Graph:
    """Two carried values, one of them in a nested graph."""
    torch.manual_seed(0)
    inner = FlowBuilder(Mixing(3, 3)).using("before").tag("before").label("inner").build()
    flow = FlowBuilder(inner).through(Mixing(3, 3)).using(before="last", init="zeros").tag("last")
    return flow.through(nn.Linear(3, 2)).build()


class WithCarriedValues(Simulated):
    """What Python itself refers to does not change during a replay."""

    def run_region(self) -> Any:
        undo = self.body.undo
        assert undo.carried is not None
        seen, restores = [(one, one.carried, one.batch) for one in undo.carried.holders], undo.restore_carried
        result = super().run_region()
        for holder, carried, size in seen:
            holder.carried, holder.batch = carried, size
        undo.restore_carried = restores
        return result


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_recordings(monkeypatch, WithCarriedValues)


class Run:
    """Trains on random batches; after two windows with a recording, wherever it fits."""

    def __init__(self, *, is_recorded: bool, accumulate: int = 1, update_inside: bool = True) -> None:
        self.model = new_model()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.body = body_of(TrainStep(self.model, optimizer, mse, tier="eager", accumulate=accumulate))
        self.accumulate, self.is_recorded, self.update_inside = accumulate, is_recorded, update_inside
        self.runner: RecordedRunner | None = None
        self.source = torch.Generator().manual_seed(0)
        self.position = self.num_windows = self.num_replays = 0
        self.in_python = False

    @property
    def carried(self) -> Carried:
        assert self.body.undo.carried is not None
        return self.body.undo.carried

    def values(self) -> list[Tensor]:
        return [*self.carried.tensors()]

    def micro(self, phase: Phase, rows: int = 4, scale: float = 1.0) -> Micro:
        x = torch.randn(rows, 3, generator=self.source) * scale
        batch, form = (x, torch.randn(rows, 2, generator=self.source)), self.carried.form()
        key = (*signature(batch), form)
        return Micro(batch, key, phase, rows, 1.0 / self.accumulate, window_samples=rows, carried=form)

    def step(self, rows: int = 4, scale: float = 1.0) -> Tensor:
        phase = phases(self.accumulate)[self.position]
        self.in_python &= self.position > 0
        self.position += 1
        if self.is_recorded and self.num_windows == 2 and self.runner is None:
            self.record()
        micro = self.micro(phase, rows, scale)
        if self.runner is not None and self.runner.fits(micro) and not self.in_python:
            loss = self.runner.run(micro).loss.clone()
            self.num_replays += 1
        else:
            if self.runner is not None and not self.in_python:
                self.runner.show_grads()
            self.in_python = True
            loss = EagerRunner(self.body).run(micro).loss
        self.body.undo.detach_carried()
        if micro.closes:
            self.position, self.num_windows = 0, self.num_windows + 1
        return loss

    def record(self) -> None:
        random = self.source.get_state()
        window = [self.micro(phase) for phase in phases(self.accumulate)]
        self.runner = record(self.body, window, update_inside=self.update_inside)
        self.source.set_state(random)


def reset(run: Run) -> None:
    run.model.reset_state()


def detach(run: Run) -> None:
    run.model.detach_state()


def evaluate(run: Run) -> None:
    with torch.no_grad(), without_carried_values(run.model):
        run.model(torch.ones(7, 3))


def call(run: Run) -> None:
    with torch.no_grad():
        run.model(torch.ones(4, 3))


def go_back(run: Run) -> None:
    saved = graph_state(run.model)
    for _ in range(run.accumulate):
        run.step()
    load_graph_state(run.model, saved, CPU)


def save_and_load(run: Run) -> None:
    load_graph_state(run.model, copy.deepcopy(graph_state(run.model)), CPU)


def not_finite(run: Run) -> None:
    for _ in range(run.accumulate):
        run.step(scale=torch.nan)


def not_finite_at_the_end(run: Run) -> None:
    for number in range(run.accumulate):
        run.step(scale=torch.nan if number == run.accumulate - 1 else 1.0)


def ragged(run: Run) -> None:
    run.model.reset_state()
    for _ in range(run.accumulate):
        run.step(rows=3)
    run.model.reset_state()


def keep(run: Run) -> None:
    restore = run.model.keep_state()
    for _ in range(run.accumulate):
        run.step()
    restore(torch.ones(()))


EVENTS = [
    reset,
    detach,
    evaluate,
    call,
    go_back,
    save_and_load,
    not_finite,
    not_finite_at_the_end,
    ragged,
    keep,
]


@pytest.mark.parametrize("update_inside", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_replays_continue_like_eager(
    event: Callable[[Run], None], accumulate: int, update_inside: bool
) -> None:
    def trained(is_recorded: bool) -> Iterator[list[Tensor]]:
        run = Run(is_recorded=is_recorded, accumulate=accumulate, update_inside=update_inside)
        for _ in range(3):
            for _ in range(3 * accumulate):
                loss = run.step()
                yield [loss, *(one.clone() for one in run.values())]
            event(run)
            yield [one.clone() for one in (*run.values(), *run.model.parameters())]
        assert run.num_replays >= accumulate * is_recorded * 4

    for number, (found, wanted) in enumerate(zip(trained(True), trained(False), strict=True)):
        assert len(found) == len(wanted), number
        for mine, theirs in zip(found, wanted):
            assert torch.equal(mine, theirs), number


def static_state(*values: Any) -> tuple[Carried, StaticState]:
    model = FlowBuilder(Mixing(3, 3)).using("before").tag("before").build()
    undo = ForwardUndo(model)
    assert undo.carried is not None
    (holder,) = undo.carried.holders
    holder.carried, holder.batch = values, 2
    return undo.carried, StaticState(undo.carried, undo, CPU)


def test_values_that_were_exchanged_are_loaded() -> None:
    carried, state = static_state(torch.ones(2), torch.zeros(2))
    state.show()
    (holder,) = carried.holders
    holder.carried = holder.carried[1], holder.carried[0]
    state.load()
    state.show()
    assert [one.tolist() for one in holder.carried] == [[0.0, 0.0], [1.0, 1.0]]


def test_nested_values_are_fed_back() -> None:
    carried, state = static_state({"h": torch.ones(2), "c": [torch.zeros(3), None]})
    (holder,) = carried.holders
    before = carried.form()
    state.begin()
    old = holder.carried[0]
    holder.carried = ({"h": old["h"] + 1, "c": [old["c"][0] - 1, None]},)
    state.feed_back()
    assert carried.form() == before
    assert [one.tolist() for one in carried.tensors()] == [[2.0, 2.0], [-1.0, -1.0, -1.0]]


@pytest.mark.parametrize("value", [None, torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_value_of_another_form_is_not_fed_back(value: Tensor | None) -> None:
    carried, state = static_state(torch.ones(2))
    state.begin()
    carried.holders[0].carried = (value,)
    with pytest.raises(NotCapturable, match="feeds back values of the same shape"):
        state.feed_back()


def test_a_value_on_another_device_is_refused() -> None:
    with pytest.raises(NotCapturable, match="a carried value is on meta, and the model on cpu"):
        static_state(torch.ones(2, device="meta"))


def test_what_a_call_returned_is_not_overwritten_by_a_replay() -> None:
    class Delay(nn.Module):
        def forward(self, x: Tensor, before: Tensor) -> Tensor:
            return before

    model = FlowBuilder().fork(Delay()).using(before="last", init="zeros").tag("delayed")
    graph = model.through(nn.Identity()).tag("last").output("delayed", "last").build()
    undo = ForwardUndo(graph)
    assert undo.carried is not None
    graph(torch.ones(2))
    state = StaticState(undo.carried, undo, CPU)
    state.show()
    returned = graph(torch.zeros(2))["delayed"]
    state.load()
    assert returned.tolist() == [1.0, 1.0]
