"""Tags, traces and collected values of captured and compiled steps: those of the last step, as in eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, LearnedHalt
from flodl.core import PathError
from flodl.engine import TrainStep, capture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def emitting(x: Tensor, *, emit) -> Tensor:
    emit("size", x.abs().mean())
    return 0.5 * x


def new_model() -> Graph:
    torch.manual_seed(0)
    inner = FlowBuilder(nn.Linear(16, 32)).tag("wide").through(nn.GELU()).label("inner").build()
    flow = FlowBuilder(inner).loop_body(emitting).for_n(2).tag("grown").loop_body(nn.Linear(32, 32))
    flow = flow.until_cond(LearnedHalt(32), 2).tag("thought").through(nn.Linear(32, 4)).tag("out")
    return flow.build().cuda()


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def reads(model: Graph) -> dict[str, Tensor]:
    """Return everything that can be read after a step; nothing is copied here."""
    found = {tag: model.tagged(tag) for tag in ("inner.wide", "grown", "thought", "out")}
    for trace in ("grown.size", "thought.halt"):
        found.update({f"{trace} {turn}": value for turn, value in enumerate(model.traces(trace))})
    return {name: value.detach() for name, value in found.items()}


def trained(tier: str, sizes: list[int], *, evaluate_after: int = -1, **settings):
    """Return the step, what was read after each step, and the collected metric."""
    model = new_model()
    # Without momentum or normalization, which would amplify the rounding of a compiled step.
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-2), mse, tier=tier, **settings)
    source, found = torch.Generator("cuda").manual_seed(1), []
    for number, size in enumerate(sizes):
        x = torch.randn(size, 16, device="cuda", generator=source)
        step(x, torch.randn(size, 4, device="cuda", generator=source))
        found.append(reads(model))
        model.collect("inner.wide", reduce="norm")
        model.end_step()
        if number == evaluate_after:
            with torch.no_grad():
                assert torch.equal(model(x), model.tagged("out"))
    model.end_epoch()
    return step, found, model.trend("inner.wide").latest


def assert_like_eager(tier: str, sizes: list[int], **settings) -> TrainStep:
    step, found, collected = trained(tier, sizes, **settings)
    assert step.tier == tier, step.report().events
    _, wanted, expected = trained("eager", sizes, **settings)
    exact = {"rtol": 0.0, "atol": 0.0} if tier == "captured" else {"rtol": 1e-3, "atol": 1e-4}
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, msg=f"{name} after step {number}", **exact)
    assert collected == pytest.approx(expected, rel=1e-3)
    return step


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_they_are_those_of_the_last_step(tier: str) -> None:
    assert_like_eager(tier, [8] * 40)


def test_they_are_right_after_a_call_in_between() -> None:
    assert_like_eager("captured", [8] * 40, evaluate_after=30)


def test_they_are_right_for_batches_of_several_shapes() -> None:
    step = assert_like_eager("captured", [8] * 16 + [5, 5, 8, 8] * 8)
    assert step.report().captures >= 2


def test_they_are_those_of_the_last_micro_batch() -> None:
    assert_like_eager("captured", [8] * 60, accumulate=3)


def test_they_are_right_where_the_update_stays_outside_of_the_recording() -> None:
    class Own(torch.optim.SGD):
        """Not one of torch's own, so that its update is not recorded."""

    def losses(tier: str) -> tuple[TrainStep, list[Tensor]]:
        model = new_model()
        step = TrainStep(model, Own(model.parameters(), lr=1e-3), mse, tier=tier)
        source, found = torch.Generator("cuda").manual_seed(1), []
        for _ in range(20):
            step(torch.randn(8, 16, device="cuda", generator=source), torch.zeros(8, 4, device="cuda"))
            found.append(model.tagged("out").detach())
        return step, found

    step, found = losses("captured")
    _, wanted = losses("eager")
    assert step.tier == "captured", step.report()
    assert all(map(torch.equal, found, wanted))


def test_a_graph_outside_of_the_model_is_followed() -> None:
    teacher = FlowBuilder(nn.Linear(16, 4)).tag("answer").build().cuda()

    def distill(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return nn.functional.mse_loss(model(x), wanted)

    model = nn.Linear(16, 4).cuda()
    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), distill, tier="captured")
    for _ in range(20):
        x = torch.randn(8, 16, device="cuda")
        step(x)
        torch.testing.assert_close(teacher.tagged("answer"), teacher.answer(x))
    assert step.tier == "captured", step.report()


def test_a_step_function_that_records_metrics_stays_eager_with_the_reason() -> None:
    def recording(model: Graph, x: Tensor, y: Tensor) -> Tensor:
        loss = mse(model, x, y)
        model.record("loss", loss)
        return loss

    model = new_model()
    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), recording, tier="captured")
    losses = [
        step(torch.randn(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda")).item() for _ in range(20)
    ]
    model.end_epoch()
    assert step.tier == "eager"
    assert "its step function records metrics of a graph" in step.report().reason
    assert model.trend("loss").latest == pytest.approx(sum(losses) / 20, rel=1e-5)


def test_recording_after_each_micro_batch_does_not_prevent_capture() -> None:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, mse, tier="captured", accumulate=2)
    batches = torch.randn(30, 8, 16, device="cuda")
    for batch in batches:
        loss = step(batch, torch.zeros(8, 4, device="cuda"))
        model.record("loss", loss)
    assert step.tier == "captured", step.report()


def test_tags_that_were_not_kept_during_the_recording_cannot_be_read() -> None:
    model = new_model()
    model.keeps_tags = False
    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), mse, tier="captured")
    batch = torch.randn(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda")
    for _ in range(16):
        step(*batch)
    assert step.tier == "captured", step.report()
    model.keeps_tags = True
    step(*batch)
    with pytest.raises(PathError, match="did not keep tags"):
        model.tagged("out")


def test_what_was_read_stays_as_it_was() -> None:
    model = new_model()
    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), mse, tier="captured")
    for _ in range(16):
        step(torch.randn(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda"))
    assert step.tier == "captured", step.report()
    first = reads(model)
    copies = {name: value.clone() for name, value in first.items()}
    for _ in range(4):
        step(torch.randn(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda"))
    assert all(torch.equal(first[name], copies[name]) for name in first)


def test_a_captured_forward_shows_its_tags() -> None:
    model = new_model().eval()
    with torch.no_grad():
        forward = capture(model)
        for size in (8, 8, 5, 8):
            x = torch.randn(size, 16, device="cuda")
            out = forward(x)
            assert torch.equal(model.tagged("out"), out)
            torch.testing.assert_close(model.tagged("inner.wide"), model.inner.wide(x))
    assert forward.captures == 2
