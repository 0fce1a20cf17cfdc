"""Captured is eager, bit for bit, over hundreds of steps; compiled follows; nothing is left behind."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep, capture
from flodl.engine.compile import policy as compilation
from flodl.engine.internals import controller_of
from flodl.engine.tiers import controller
from flodl.optim import CosineScheduler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from models import small_suite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TEN = {name: reference for name, reference in small_suite().items() if name != "feedback_loop"}


@pytest.fixture(autouse=True)
def algorithms_that_repeat_themselves():
    """With others, two eager runs of a convolution differ already."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def adam(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Adam as `TrainStep` sets it on CUDA: fused, with the rate on the device."""
    rate = torch.tensor(lr, device="cuda")
    return torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=True)


@pytest.mark.parametrize("name", TEN)
def test_captured_equals_a_plain_loop_over_200_steps(name: str) -> None:
    reference = TEN[name]
    batches = reference.batches(20, "cuda")

    plain = reference.flow("cuda")
    optimizer = adam(plain, reference.lr)
    torch.manual_seed(3)
    expected = []
    for turn in range(200):
        x, y = batches[turn % 20]
        optimizer.zero_grad()
        loss = reference.loss(plain(x), y)
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())

    model = reference.flow("cuda")
    step = TrainStep(
        model,
        torch.optim.Adam(model.parameters(), lr=reference.lr),
        lambda model, x, y: reference.loss(model(x), y),
        tier="captured",
    )
    torch.manual_seed(3)
    losses = [step(*batches[turn % 20]) for turn in range(200)]
    assert step.tier == "captured", step.report()
    assert torch.equal(torch.stack(losses), torch.stack(expected)), step.report()
    assert_same_weights(plain, model)


def model_with_everything() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 4)
    ).cuda()


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x).float(), y)


def draws(count: int, *, sizes=(32,)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator("cuda").manual_seed(1)
    return [
        (
            torch.randn(sizes[number % len(sizes)], 16, device="cuda", generator=source),
            torch.randn(sizes[number % len(sizes)], 4, device="cuda", generator=source),
        )
        for number in range(count)
    ]


def test_captured_equals_a_plain_loop_with_everything_in_it() -> None:
    """Dropout, batch norm, clipping, a schedule, accumulation and bf16 at once, 240 micro-batches."""
    schedule = CosineScheduler(1e-2, 1e-4, 120)
    data = draws(240)

    plain = model_with_everything()
    optimizer = adam(plain, 1e-2)
    torch.manual_seed(3)
    expected = []
    for number, (x, y) in enumerate(data):
        if number % 2 == 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = mse(plain, x, y)
            part = loss * 0.5
        part.backward()
        expected.append(loss.detach())
        if number % 2:
            optimizer.param_groups[0]["lr"].fill_(schedule.lr(number // 2))
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()

    model = model_with_everything()
    step = TrainStep(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        mse,
        tier="captured",
        clip_norm=0.5,
        schedule=schedule,
        accumulate=2,
        precision="bf16",
    )
    torch.manual_seed(3)
    losses = [step(x, y) for x, y in data]
    assert step.tier == "captured", step.report()
    assert torch.equal(torch.stack(losses), torch.stack(expected)), step.report()
    assert_same_weights(plain, model)


@pytest.mark.parametrize("name", ["mlp", "feedback_fixed", "transformer"])
def test_compiled_follows_eager_and_learns_as_much(name: str) -> None:
    reference = TEN[name]
    batches = reference.batches(10, "cuda")

    def train(tier: str) -> tuple[torch.Tensor, TrainStep]:
        model = reference.flow("cuda")
        step = TrainStep(
            model,
            torch.optim.Adam(model.parameters(), lr=reference.lr),
            lambda model, x, y: reference.loss(model(x), y),
            tier=tier,
        )
        torch.manual_seed(3)
        return torch.stack([step(*batches[turn % 10]) for turn in range(200)]), step

    eager, _ = train("eager")
    compiled, step = train("compiled")
    assert step.tier == "compiled", step.report()
    torch.testing.assert_close(compiled[:20], eager[:20], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(compiled[-20:].mean(), eager[-20:].mean(), rtol=0.05, atol=1e-3)


def train(tier: str, data, *, optimizer=torch.optim.Adam, flush_every: int = 0, **settings):
    model = model_with_everything()
    step = TrainStep(model, optimizer(model.parameters(), lr=1e-3), mse, tier=tier, **settings)
    torch.manual_seed(3)
    losses, used = [], {}
    for number, (x, y) in enumerate(data, start=1):
        losses.append(step(x, y))
        if flush_every and number % flush_every == 0:
            step.flush()
        if number in (500, 1000):
            torch.cuda.synchronize()
            used[number] = torch.cuda.memory_allocated()
    return torch.stack(losses), model, step, used


def test_a_thousand_steps_with_random_tails_are_eagers_and_leak_nothing() -> None:
    tails = torch.randint(2, 32, (100,), generator=torch.Generator().manual_seed(2)).tolist()
    sizes = [32 if number % 10 != 9 else tails[number // 10] for number in range(1000)]
    data = draws(1000, sizes=sizes)
    expected, plain, _, _ = train("eager", data)
    losses, model, step, used = train("captured", data)
    assert step.tier == "captured", step.report()
    assert step.report().captures == 1
    assert torch.equal(losses, expected)
    assert_same_weights(plain, model)
    assert abs(used[1000] - used[500]) < 1 << 20, used


def test_the_host_may_run_far_ahead_of_the_device() -> None:
    """Batches are handed over by their address; those of hundreds of steps may be under way."""

    def run(tier: str) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 16)).cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-5), mse, tier=tier)
        source = torch.Generator("cuda").manual_seed(1)
        losses = []
        for _ in range(900):
            x = torch.randn(2048, 2048, device="cuda", generator=source)
            losses.append(step(x, x[:, :16].contiguous()))
        return torch.stack(losses), step

    expected, _ = run("eager")
    losses, step = run("captured")
    assert step.tier == "captured", step.report()
    assert torch.equal(losses, expected)


def test_ragged_micro_batches_in_windows_of_accumulation_are_eagers() -> None:
    """A tail in the middle, at the beginning and at the end of a window, with windows that are flushed."""
    sizes = [32] * 41 + [7] + [32] * 3 + [5, 9] + [32] * 6 + [3]
    data = draws(len(sizes) * 3, sizes=sizes)
    for flush_every in (0, len(sizes)):
        expected, plain, _, _ = train("eager", data, accumulate=2, flush_every=flush_every)
        losses, model, step, _ = train("captured", data, accumulate=2, flush_every=flush_every)
        assert step.tier == "captured", step.report()
        assert torch.equal(losses, expected)
        assert_same_weights(plain, model)


class OverTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).mean(1)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_lengths_that_take_turns_are_eagers(optimizer, accumulate: int) -> None:
    """Also where the update stays outside (Adagrad), and where one window holds two lengths."""
    source = torch.Generator("cuda").manual_seed(1)
    lengths = [8] * 12 + [8, 12, 12, 8, 12, 8, 8, 12] * 6
    data = [
        (
            torch.randn(16, length, 16, device="cuda", generator=source),
            torch.randn(16, 4, device="cuda", generator=source),
        )
        for length in lengths
    ]

    def run(tier: str) -> tuple[torch.Tensor, nn.Module, TrainStep]:
        torch.manual_seed(0)
        model = OverTime().cuda()
        step = TrainStep(model, optimizer(model.parameters(), lr=1e-2), mse, tier=tier, accumulate=accumulate)
        return torch.stack([step(x, y) for x, y in data]), model, step

    expected, plain, _ = run("eager")
    losses, model, step = run("captured")
    assert step.tier == "captured", step.report()
    assert step.report().captures == 2
    assert torch.equal(losses, expected)
    assert_same_weights(plain, model)


def test_a_shape_that_cannot_be_captured_runs_once_and_leaves_the_others_captured() -> None:
    def reading(model, x, y):
        loss = mse(model, x, y)
        if x.shape[1] == 12:
            loss.item()
        return loss

    source = torch.Generator("cuda").manual_seed(1)
    data = [
        (torch.randn(16, length, 16, device="cuda", generator=source), torch.zeros(16, 4, device="cuda"))
        for length in [8] * 12 + [12, 8] * 6
    ]

    def run(tier: str) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = OverTime().cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-2), reading, tier=tier)
        return torch.stack([step(x, y) for x, y in data]), step

    expected, _ = run("eager")
    losses, step = run("captured")
    assert torch.equal(losses, expected)
    assert step.tier == "captured", step.report()
    assert any("a different shape cannot be captured" in event.reason for event in step.report().events)


@pytest.mark.parametrize(("accumulate", "at"), [(1, 4), (2, 8)], ids=["rehearsed", "middle of a window"])
def test_a_host_read_leaves_the_trajectory_of_eager(accumulate: int, at: int) -> None:
    """The first reads where it is rehearsed; the second between two micro-batches, whose sum must stay."""
    calls = {"number": 0}

    def reading(model, x, y):
        loss = mse(model, x, y)
        calls["number"] += 1
        if calls["number"] == at:
            loss.item()
        return loss

    data = draws(24)

    def run(tier: str) -> tuple[torch.Tensor, nn.Module, TrainStep]:
        calls["number"] = 0
        model = model_with_everything()
        step = TrainStep(
            model, torch.optim.Adam(model.parameters()), reading, tier=tier, accumulate=accumulate
        )
        torch.manual_seed(3)
        return torch.stack([step(x, y) for x, y in data]), model, step

    expected, plain, _ = run("eager")
    losses, model, step = run("captured")
    assert step.tier == "eager"
    assert "loss.item()" in step.report().reason
    assert torch.equal(losses, expected)
    assert_same_weights(plain, model)


def test_an_error_while_recording_leaves_the_trajectory_of_eager() -> None:
    def unrecordable(model, x, y):
        if torch._C._cuda_isCurrentStreamCapturing():  # torch.cuda's own always says yes within a step
            raise ValueError("not while recording")
        return mse(model, x, y)

    data = draws(20)

    def run(tier: str, step_fn) -> tuple[torch.Tensor, nn.Module, TrainStep]:
        model = model_with_everything()
        step = TrainStep(model, torch.optim.Adam(model.parameters()), step_fn, tier=tier)
        torch.manual_seed(3)
        return torch.stack([step(x, y) for x, y in data]), model, step

    expected, plain, _ = run("eager", mse)
    losses, model, step = run("captured", unrecordable)
    assert (step.tier, "not while recording" in step.report().reason) == ("eager", True)
    assert torch.equal(losses, expected)
    assert_same_weights(plain, model)
    after, _, other = run("captured", mse)
    assert other.tier == "captured", other.report()
    assert torch.equal(after, expected)


def test_an_error_in_the_step_reaches_the_user_with_nothing_applied() -> None:
    failing = {"now": False}

    def fragile(model, x, y):
        out = model(x)
        if failing["now"]:
            raise ValueError("a bad batch")
        return nn.functional.mse_loss(out, y)

    model = model_with_everything().eval()
    optimizer = torch.optim.Adam(model.parameters())
    step = TrainStep(model, optimizer, fragile, tier="captured")
    data = draws(12)
    for number, (x, y) in enumerate(data):
        if number in (1, 4):  # eager, and during the trial
            weights = [p.detach().clone() for p in model.parameters()]
            moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
            failing["now"] = True
            with pytest.raises(ValueError, match="a bad batch"):
                step(x, y)
            failing["now"] = False
            assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))
            assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(moments, optimizer.state.values()))
        assert torch.isfinite(step(x, y))
    assert step.updates == 12
    assert torch.isfinite(torch.randn(4, device="cuda")).all()


def test_auto_reaches_compiled_beside_training_and_says_what_it_cost(monkeypatch) -> None:
    pytest.importorskip("cloudpickle")
    monkeypatch.setitem(compilation.COMPILE_AFTER_S, "cuda", 0.0)
    # Which tier is faster for a model as small as this is not what this is about.
    monkeypatch.setattr(controller.TierController, "keep_if_faster", lambda controller, step: None)
    model = model_with_everything()
    step = TrainStep(model, torch.optim.Adam(model.parameters()), mse)
    (x, y), end = draws(1)[0], time.monotonic() + 400
    tiers = []
    while step.tier != "compiled" and controller_of(step).tiers_ahead and time.monotonic() < end:
        step(x, y)
        if step.tier not in tiers:
            tiers.append(step.tier)
        if tiers[-1] == "captured":
            time.sleep(0.002)
    report = step.report()
    print(report)
    assert report.tier == "compiled", report
    assert tiers == ["eager", "captured", "compiled"]
    assert report.compiles == 1
    assert report.promotion_cost_s > 0
    for _ in range(20):
        assert torch.isfinite(step(x, y))
    assert step.report().gain is not None
    step.close()


def test_forwards_are_captured_by_shape_with_results_that_stay() -> None:
    torch.manual_seed(0)
    model = model_with_everything().eval()

    def forward(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = model(batch["x"])
        return {"out": out, "best": out.argmax(1)}

    with torch.inference_mode():
        captured = capture(forward, max_captures=3)
        kept = []
        for size in (8, 16, 32, 8, 16, 32, 64, 8):
            x = torch.randn(size, 16, device="cuda")
            kept.append((captured({"x": x}), forward({"x": x})))
    assert captured.captures == 3
    for ours, theirs in kept:
        assert torch.equal(ours["out"], theirs["out"])
        assert torch.equal(ours["best"], theirs["best"])
