"""Tags and traces of a recorded step: those of the last replay, copied when read. The device is simulated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flodl import FlowBuilder, Graph, LearnedHalt
from flodl.core import PathError
from flodl.engine import TrainStep
from flodl.engine.batch.tree import refill, static_copy, tensors_of
from flodl.engine.capture import runner as module
from flodl.engine.capture.runner import RecordedRunner
from flodl.engine.internals import body_of
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.state.snapshot import Snapshot
from flodl.observe import LastValues, RecordedValues

TARGET = torch.zeros(4, 2)


def emitting(x: Tensor, *, emit: Callable[[str, Any], None]) -> Tensor:
    emit("size", x.abs().mean())
    return 0.5 * x


def new_model() -> Graph:
    torch.manual_seed(0)
    inner = FlowBuilder(nn.Linear(3, 5)).tag("code_of_inner").label("inner").build()
    return (
        FlowBuilder(inner)
        .tag("hidden")
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


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def reads(model: Graph) -> dict[str, Tensor]:
    """Return everything that can be read after a call."""
    tags = ["inner.code_of_inner", "hidden", "grown", "thought", "out"]
    traces = ["grown.size", "thought.halt"]
    return {tag: model.tagged(tag) for tag in tags} | {
        f"{name} {turn}": value for name in traces for turn, value in enumerate(model.traces(name))
    }


class Simulated:
    """A recording that is replayed by Python, which then sees nothing but tensors that were overwritten."""

    mailbox = None

    def __init__(self, region: Callable[..., Any], batch: tuple[Any, ...], holders: list[LastValues]) -> None:
        self._region, self._static, self._holders = region, static_copy(batch), holders
        self.inputs = tensors_of(self._static)
        self.result = region(*self._static)
        self._recorded = [holder.values for holder in holders]
        self.shared, self.fits = (), lambda *batch: True

    def replay(self, batch: list[Tensor]) -> Any:
        refill(self.inputs, batch)
        before = [holder.values for holder in self._holders]
        result = self._region.__wrapped__(*self._static)
        for holder, recorded, then in zip(self._holders, self._recorded, before):
            for mine, now in zip(pytree.tree_leaves(recorded), pytree.tree_leaves(holder.values)):
                if mine is not None:
                    mine.data.copy_(now.data)
            holder.values = then
        self.result.loss.copy_(result.loss)
        return self.result


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch):
    """Return a function that records a step of a model for a batch."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(module, "new_stream", lambda device: None)
    monkeypatch.setattr(
        RecordedRunner,
        "record_region",
        lambda self, region, micro: Simulated(region, micro.inputs, self.body.side_effects.stores),
    )

    def record(model: nn.Module, step_fn: Callable[..., Tensor] = mse) -> Callable[[Tensor], None]:
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
        batch = torch.randn(4, 3), TARGET
        step(*batch)
        body = body_of(step)
        before = Snapshot(body, batch)
        EagerRunner(body).run(_micro(*batch))
        before.prepare_recording(Snapshot(body, batch), body)
        runner = RecordedRunner(body, update_inside=True)
        monkeypatch.setattr(runner, "fast_update", lambda: None)
        runner.learn(_micro(*batch))
        before.restore()

        def run(x: Tensor) -> None:
            runner.run(_micro(x, TARGET))

        run.runner = runner  # type: ignore[attr-defined]
        return run

    return record


def _micro(*batch: Tensor) -> Micro:
    return Micro(batch, ("the only one",), Phase.ONLY, samples=4)


def expected(model: Graph, x: Tensor) -> dict[str, Tensor]:
    """Return what the model stores for a batch, without changing it."""
    twin = copy.deepcopy(model)
    twin(x)
    return {name: value.detach().clone() for name, value in reads(twin).items()}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
        assert not found[name].requires_grad


def test_tags_and_traces_are_those_of_the_last_replay(recorded) -> None:
    model = new_model()
    run = recorded(model)
    kept = []
    for _ in range(3):
        x = torch.randn(4, 3)
        wanted = expected(model, x)
        run(x)
        assert_same(reads(model), wanted)
        kept.append((reads(model), wanted))
    for found, wanted in kept:  # later replays change nothing that was read before
        assert_same(found, wanted)


def test_a_call_in_between_is_seen_until_the_next_replay(recorded) -> None:
    model = new_model()
    run = recorded(model)
    run(torch.randn(4, 3))
    x = torch.randn(6, 3)
    out = model(x)
    assert model.tagged("out") is out
    x = torch.randn(4, 3)
    wanted = expected(model, x)
    run(x)
    assert_same(reads(model), wanted)


def test_collected_values_are_those_of_each_replay(recorded) -> None:
    model = new_model()
    run = recorded(model)
    wanted = []
    for _ in range(3):
        x = torch.randn(4, 3)
        wanted.append(expected(model, x)["hidden"].double().mean().item())
        run(x)
        model.collect("hidden")
        model.end_step()
    model.end_epoch()
    assert model.trend("hidden").latest == pytest.approx(sum(wanted) / 3, rel=1e-6)


def test_detaching_does_not_hide_the_values_of_a_recording(recorded) -> None:
    model = new_model()
    run = recorded(model)
    run(torch.randn(4, 3))
    shown = [holder.values for holder, _ in run.runner.last.stored.pairs]
    model.end_step()
    model.detach_state()
    assert [holder.values for holder, _ in run.runner.last.stored.pairs] == shown
    assert all(isinstance(values, RecordedValues) for values in shown)


def test_a_graph_that_only_the_step_function_reaches_is_followed_too(recorded) -> None:
    teacher = FlowBuilder(nn.Linear(3, 2)).tag("answer").build()

    def distill(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return (model(x) - wanted).square().mean()

    run = recorded(nn.Linear(3, 2), distill)
    for _ in range(2):
        x = torch.randn(4, 3)
        run(x)
        assert torch.equal(teacher.tagged("answer"), teacher.answer(x))


def test_a_graph_that_the_step_does_not_call_keeps_its_values(recorded) -> None:
    model = nn.Module()
    model.used = FlowBuilder(nn.Linear(3, 2)).tag("out").build()
    model.unused = FlowBuilder(nn.Linear(3, 2)).tag("out").build()
    run = recorded(model, lambda m, x, y: mse(m.used, x, y))
    out = model.unused(torch.ones(1, 3))
    run(torch.randn(4, 3))
    assert model.unused.tagged("out") is out


def test_tags_that_were_not_kept_when_the_step_was_recorded_cannot_be_read(recorded) -> None:
    model = new_model()
    model.keeps_tags = False
    run = recorded(model)
    model.keeps_tags = True
    run(torch.randn(4, 3))
    with pytest.raises(PathError, match="the last call did not keep tags, so 'hidden' has no value"):
        model.tagged("hidden")
    model(torch.ones(4, 3))
    assert model.tagged("hidden").shape == (4, 5)
