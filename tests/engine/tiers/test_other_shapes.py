"""Batches of other shapes next to a prepared step; the recordings are stand-ins for those of a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.errors import NotCapturable
from flodl.engine.internals import body_of, controller_of
from flodl.engine.program.runner import EagerRunner
from flodl.engine.tiers import compiled_shapes, controller, record_shape
from flodl.engine.tiers import other_shapes as shapes
from flodl.engine.verify import candidate

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Replaying(EagerRunner):
    """Stands in for a runner with recordings: it runs only the shapes that it has learned."""

    update_inside = records_update = False
    update_program = None
    draws_on_host = False

    def __init__(self, body, *, update_inside: bool = False, update_apart: bool = False) -> None:
        super().__init__(body)
        self.shapes: set = set()
        self.replays = 0
        self.changed: str | None = None

    def fits(self, micro) -> bool:
        return micro.signature in self.shapes

    def what_changed(self) -> str | None:
        return self.changed

    def learn(self, micro) -> None:
        self._now_has(self.shapes | {micro.signature})

    def forget(self, micro) -> None:
        self._now_has(self.shapes - {micro.signature})

    def forget_all(self) -> None:
        self._now_has(set())

    def forget_shapes_of(self, other) -> None:
        self._now_has(self.shapes - other.shapes)

    def lane(self, turns: int) -> None:
        return None

    def run_without_update(self, micro):
        assert self.fits(micro)
        self.replays += 1
        return super().run_without_update(micro)

    def _now_has(self, known: set) -> None:
        self.shapes, self.captures = known, len(known)


@pytest.fixture
def recordings(quick_compiler, monkeypatch) -> None:
    for name in ("CompiledRunner", "RecordedRunner"):
        monkeypatch.setattr(candidate, name, Replaying)
    monkeypatch.setattr(controller, "RecordedRunner", Replaying)
    monkeypatch.setattr(shapes, "RecordedRunner", Replaying)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y) * weight


def new_step(**settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), mse, **settings)


def run(step: TrainStep, count: int, *others: float, size: int = 8) -> list[torch.Tensor]:
    return [step(torch.ones(size, 4), torch.zeros(size, 2), *others) for _ in range(count)]


def beside(step: TrainStep) -> Replaying:
    return controller_of(step).other_shapes.side_runner


def reasons(step: TrainStep) -> list[str]:
    return [f"{event.kind}: {event.reason}" for event in step.report().events]


def alternating(step: TrainStep, count: int) -> torch.Tensor:
    return torch.stack([*run(step, 5), *(run(step, 1, size=8 + 8 * (i % 2))[0] for i in range(count))])


def test_another_shape_is_captured_next_to_a_compiled_step(recordings, monkeypatch) -> None:
    monkeypatch.setitem(compiled_shapes.SEEN_BEFORE_COMPILING, "compiled", 100)
    step = new_step(tier="compiled")
    torch.testing.assert_close(alternating(step, 20), alternating(new_step(tier="eager"), 20))
    assert (step.tier, step.report().captures) == ("compiled", 2)
    # Ten times: two eagerly, one recorded and replayed for comparison, seven replayed.
    assert beside(step).replays == 8
    assert not beside(step).body.is_compiled
    assert reasons(step)[1:] == [
        "eager: a batch of a different shape than the recorded one runs eagerly",
        "captured: a batch of a different shape than the compiled one is replayed",
    ]


def test_a_frequent_shape_is_compiled_and_its_capture_is_dropped(recordings) -> None:
    step = new_step(tier="compiled")
    torch.testing.assert_close(alternating(step, 20), alternating(new_step(tier="eager"), 20))
    assert (step.tier, step.report().captures, step.report().compiles) == ("compiled", 2, 2)
    assert beside(step) is None
    runner = controller_of(step).runner
    assert runner.body.is_compiled
    assert len(runner.shapes) == 2
    before = runner.replays
    run(step, 3, size=16)
    assert runner.replays == before + 3


def test_a_shape_that_cannot_be_compiled_stays_captured(recordings, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotCapturable("torch's compiler failed: no")

    step = new_step(tier="compiled")
    run(step, 6)
    monkeypatch.setattr(record_shape, "compile_by_running", fail)
    alternating(step, 30)
    assert (step.tier, step.report().captures, step.report().compiles) == ("compiled", 2, 2)
    assert not beside(step).body.is_compiled
    assert any("a batch of a different shape cannot be compiled" in reason for reason in reasons(step))


def test_the_number_of_compiled_shapes_is_limited(recordings, monkeypatch) -> None:
    monkeypatch.setattr(compiled_shapes, "MAX_COMPILED_SHAPES", 2)
    step = new_step(tier="compiled")
    run(step, 5)
    for _ in range(12):
        for size in (8, 9, 10, 11):
            run(step, 1, size=size)
    assert (step.report().captures, step.report().compiles) == (4, 3)
    assert beside(step).captures == 1


def test_a_shape_is_recorded_where_eager_does_not_repeat_itself(recordings, monkeypatch) -> None:
    """Kernels that add in any order give gradients that differ in their last bits from run to run."""
    noise = torch.Generator().manual_seed(0)

    def noisy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse(model, x, y) * (1 + 1e-6 * torch.rand((), generator=noise).item())

    monkeypatch.setattr(controller, "plan_tiers", lambda body: (["captured"], ""))
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), noisy, tier="captured")
    run(step, 8)
    run(step, 5, size=16)
    assert (step.tier, step.report().captures) == ("captured", 2), step.report()


def test_with_accumulation_other_shapes_run_eagerly(recordings) -> None:
    step = new_step(tier="compiled", accumulate=2)
    run(step, 10)
    assert step.tier == "compiled", step.report()
    for size in (8, 8, 16, 16) * 5:
        run(step, 1, size=size)
    assert beside(step) is None


def test_recordings_of_other_shapes_are_dropped_after_a_change(recordings, monkeypatch) -> None:
    monkeypatch.setitem(compiled_shapes.SEEN_BEFORE_COMPILING, "compiled", 100)
    step = new_step(tier="compiled")
    alternating(step, 8)
    first = beside(step)
    first.changed = "the optimizer's weight_decay was changed"
    alternating(step, 8)
    assert beside(step) is not first
    assert (step.tier, beside(step).replays) == ("compiled", 2)


def test_the_limit_counts_all_recordings(recordings, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MAX_CAPTURES", 3)
    step = new_step(tier="compiled")
    run(step, 5)
    for _ in range(4):
        for size in (8, 9, 10, 11):
            run(step, 1, size=size)
    assert (step.tier, step.report().captures) == ("compiled", 3)
    assert reasons(step)[-1] == "captured: a batch of a different shape than the compiled one is replayed"
    assert reasons(step)[-2] == "eager: 3 shapes are recorded; others run eagerly"


@pytest.fixture
def both_tiers(recordings, compiled_elsewhere, monkeypatch):
    """Plan the tiers as on CUDA: captured, then compiled."""
    monkeypatch.setattr(controller, "plan_tiers", lambda body: (["captured", "compiled"], ""))


@pytest.mark.parametrize(("compiled_s", "tier"), [(1.0, "compiled"), (3.0, "captured")])
def test_recordings_outlive_the_promotion_to_compiled(both_tiers, paced, compiled_s, tier) -> None:
    step = new_step()
    paced(step, {"eager": 3.0, "captured": 2.0, "compiled": compiled_s})
    run(step, 6)
    assert step.tier == "captured", step.report()
    captured = controller_of(step).runner
    run(step, 4, size=16)
    assert step.report().captures == 2
    run(step, 30)
    assert (step.tier, step.report().captures) == (tier, 2)
    before = captured.replays
    run(step, 3, size=16)
    assert captured.replays == before + 3


def test_a_shape_is_recorded_again_after_the_step_was_prepared_again(recordings, monkeypatch) -> None:
    monkeypatch.setattr(controller, "plan_tiers", lambda body: (["captured"], ""))
    step = new_step(tier="captured")
    for learns in (True, False):
        body_of(step).model.bias.requires_grad_(learns)
        if step.tier == "captured":
            controller_of(step).runner.changed = "a parameter was frozen or thawed"
        run(step, 8)
        run(step, 4, size=16)
        assert (step.tier, step.report().captures) == ("captured", 2), step.report()


def test_a_number_that_changes_in_every_step_causes_no_compilation(quick_compiler, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MAX_SEEN", 5)
    step = new_step(tier="compiled")
    run(step, 5, 1.0)
    assert step.tier == "compiled", step.report()
    for number in range(20):
        run(step, 1, 1.0 - number / 100)
    assert (step.tier, step.report().compiles) == ("compiled", 1)


def test_only_the_latest_shapes_are_remembered(recordings, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MAX_SEEN", 5)
    step = new_step(tier="compiled")
    run(step, 5)
    for size in range(9, 30):
        run(step, 1, size=size)
    assert len(controller_of(step).other_shapes.seen) == 5
