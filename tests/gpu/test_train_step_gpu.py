"""The captured tier gives the bits of the eager tier, whatever the step contains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.tiers import inspection
from flodl.optim import CosineScheduler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def small_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 4),
    )


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    out = model(x)
    return nn.functional.mse_loss(out, y), {"mean": out.mean()}


def train(
    tier: str, *, steps: int = 60, optimizer=torch.optim.Adam, lr: float = 1e-3, sizes=(32,), **settings
):
    torch.manual_seed(0)
    model = small_model().cuda()
    step = TrainStep(model, optimizer(model.parameters(), lr=lr), mse, tier=tier, **settings)
    generator = torch.Generator("cuda").manual_seed(1)
    losses = []
    for number in range(steps):
        size = sizes[number % len(sizes)]
        x = torch.randn(size, 16, device="cuda", generator=generator)
        y = torch.randn(size, 4, device="cuda", generator=generator)
        losses.append(step(x, y))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return torch.stack(losses), state, step


def assert_same(**settings) -> TrainStep:
    eager_losses, eager, _ = train("eager", **settings)
    losses, captured, step = train("captured", **settings)
    print(step.report())
    assert step.tier == "captured", step.report()
    assert torch.equal(eager_losses, losses)
    for name, value in eager.items():
        assert torch.equal(value, captured[name]), name
    return step


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_norm": 0.5},
        {"clip_value": 0.01},
        {"schedule": CosineScheduler(1e-2, 1e-4, 60)},
        {"accumulate": 3},
        {"accumulate": 3, "clip_norm": 0.5, "schedule": CosineScheduler(1e-2, 1e-4, 20)},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "tf32"},
        {"precision": "fp16", "clip_norm": 0.5, "accumulate": 2},
    ],
    ids=str,
)
def test_captured_equals_eager_bit_for_bit(settings: dict) -> None:
    assert_same(**settings)


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "ASGD",
        "Rprop",
        "Adafactor",
    ],
)
def test_every_torch_optimizer_with_a_schedule(name: str) -> None:
    assert_same(optimizer=getattr(torch.optim, name), schedule=CosineScheduler(1e-2, 1e-4, 60))


def test_momentum() -> None:
    assert_same(optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True))


def test_ragged_tails_run_uncaptured_with_the_same_numbers() -> None:
    step = assert_same(sizes=(32, 32, 32, 32, 32, 32, 32, 32, 32, 7))
    assert step.report().captures == 1


def test_a_host_read_falls_back_with_the_line() -> None:
    def reading(model, x, y):  # the rehearsal stops here
        loss = nn.functional.mse_loss(model(x), y)
        if loss.item() < 0:
            raise ValueError
        return loss

    torch.manual_seed(0)
    model = small_model().cuda()
    step = TrainStep(model, torch.optim.Adam(model.parameters()), reading, tier="captured")
    x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
    for _ in range(10):
        loss = step(x, y)
    assert step.tier == "eager"
    assert "loss.item()" in step.report().reason
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.randn(4, device="cuda")).all()
    other = TrainStep(model, torch.optim.Adam(model.parameters()), mse, tier="captured")
    for _ in range(10):
        other(x, y)
    assert other.tier == "captured", other.report()


def test_freezing_captures_anew() -> None:
    torch.manual_seed(0)
    model = small_model().cuda()
    step = TrainStep(model, torch.optim.Adam(model.parameters()), mse, tier="captured")
    x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
    for _ in range(10):
        step(x, y)
    assert step.tier == "captured"
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    for _ in range(10):
        step(x, y)
    assert torch.equal(kept, model[0].weight)
    assert step.tier == "captured"
    assert any("frozen" in event.reason for event in step.report().events)


def test_a_nan_batch_leaves_the_weights_alone() -> None:
    for optimizer in (torch.optim.Adam, torch.optim.NAdam):
        torch.manual_seed(0)
        model = small_model().cuda().eval()
        step = TrainStep(model, optimizer(model.parameters()), mse, tier="captured")
        x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
        for _ in range(10):
            step(x, y)
        assert step.tier == "captured", step.report()
        kept = [p.clone() for p in model.parameters()]
        step(x.fill_(torch.nan), y)
        assert bool(step.skipped)
        assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters()))


def test_a_broken_recording_leaves_the_device_usable() -> None:
    from flodl.engine.capture.recording import record
    from flodl.engine.errors import NotCapturable

    x = torch.randn(4, device="cuda")
    with pytest.raises(NotCapturable):
        record(lambda v: torch.randn(3, device="cuda") * v.sum().item(), (x,))
    assert torch.isfinite(torch.randn(4, device="cuda")).all()
    assert_same(steps=20)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "settings", [{}, {"clip_norm": 0.5, "accumulate": 2}, {"precision": "bf16"}], ids=str
)
def test_the_compiled_tier_follows_eager(settings: dict) -> None:
    eager, _, _ = train("eager", **settings)
    compiled, _, step = train("compiled", **settings)
    assert step.tier == "compiled", step.report()
    tolerance = 5e-2 if settings.get("precision") == "bf16" else 1e-3
    torch.testing.assert_close(compiled, eager, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("budget_s", "left"), [(240.0, False), (0.5, True)])
def test_matrix_products_are_tuned_within_the_time_given(budget_s: float, left: bool) -> None:
    eager, _, _ = train("eager", steps=20)
    tuned, _, step = train("compiled", steps=20, tune="gemm", tune_budget_s=budget_s)
    assert step.tier == "compiled", step.report()
    told = [event.reason for event in step.report().events if event.kind == "tune"]
    assert told == ([f"autotuning kernels took longer than {budget_s:g} s and was stopped"] if left else [])
    torch.testing.assert_close(tuned, eager, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_convolutions_are_compiled_both_ways_from_one_trace() -> None:
    def train_images(tier: str) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 2)
        ).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier=tier)
        generator = torch.Generator("cuda").manual_seed(1)
        images = [torch.randn(8, 3, 8, 8, device="cuda", generator=generator) for _ in range(16)]
        return torch.stack([step(x) for x in images]), step

    eager, _ = train_images("eager")
    compiled, step = train_images("compiled")
    assert step.tier == "compiled", step.report()
    assert "as given " in step.report().reason
    assert "channels last " in step.report().reason
    torch.testing.assert_close(compiled, eager, rtol=1e-2, atol=1e-3)


class Foreign(torch.optim.Optimizer):
    """An optimizer that replaces its state in every update, and counts in an attribute."""

    def __init__(self, parameters, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["mean"] = 0.9 * state.get("mean", 0.0) + parameter.grad
                parameter -= group["lr"] / self.calls * state["mean"]


@pytest.mark.parametrize(
    "settings", [{}, {"clip_norm": 0.5, "accumulate": 2}, {"precision": "fp16"}], ids=str
)
def test_a_foreign_optimizer_is_called_once_for_each_update(settings: dict) -> None:
    step = assert_same(optimizer=Foreign, **settings)
    assert body_of(step).optimizer.calls == step.report().applied
    assert "the update stays outside" in step.report().reason


def test_an_optimizer_with_step_hooks_keeps_its_update_outside() -> None:
    calls = []

    def hooked(parameters, lr):
        optimizer = torch.optim.Adam(parameters, lr=lr)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        return optimizer

    _, _, step = train("captured", optimizer=hooked, steps=20)
    assert step.tier == "captured", step.report()
    assert len(calls) == 20
    assert "step hooks" in step.report().reason


def test_a_step_hook_that_comes_later_is_seen_after_a_while(monkeypatch) -> None:
    monkeypatch.setattr(inspection, "LOOK_EVERY", 5)
    monkeypatch.setattr(inspection, "LOOK_EVERY_S", 1e9)
    _, _, step = train("captured", steps=20)
    calls: list[int] = []
    body_of(step).optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(30):
        step(torch.zeros(32, 16, device="cuda"), torch.zeros(32, 4, device="cuda"))
    assert step.tier == "captured", step.report()
    assert len(calls) >= 24
    assert "the update stays outside: the optimizer has step hooks" in step.report().reason


def test_shapes_that_come_back_are_recorded_up_to_a_limit_and_memory_stays_flat() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).cuda()

    def over_time(model, x, y):
        return nn.functional.mse_loss(model(x).mean(1), y)

    step = TrainStep(model, torch.optim.Adam(model.parameters()), over_time, tier="captured")
    lengths = torch.randint(1, 16, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    used = []
    for number, length in enumerate([8] * 10 + lengths):
        size = 32 if number % 10 else 7
        step(torch.randn(size, length, 16, device="cuda"), torch.randn(size, 4, device="cuda"))
        if number in (600, 1009):
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
    assert step.tier == "captured", step.report()
    assert step.report().captures == 8
    assert used[1] - used[0] < 1 << 20


def test_hidden_waits_are_errors_in_strict_mode() -> None:
    from flodl.core import StepError
    from flodl.engine import memory_use, no_waiting

    x = torch.ones(3, device="cuda")
    with no_waiting():
        y = x * 2
    with pytest.raises(StepError, match="the host waited for the device"), no_waiting():
        y.sum().item()
    assert y.sum().item() == 6
    assert memory_use().allocated_bytes > 0


def test_a_scatter_that_adds_in_any_order_is_captured() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(50, 32).cuda()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def gathered(model, index, y):
        # The backward of this sum adds thousands of rows to few places, in whatever order they come.
        return nn.functional.mse_loss(torch.zeros(50, 32, device="cuda").index_add(0, index, model(index)), y)

    step = TrainStep(table, optimizer, gathered, tier="captured")
    index = torch.randint(0, 50, (20000,), device="cuda")
    for _ in range(10):
        step(index, torch.randn(50, 32, device="cuda"))
    assert step.tier == "captured", step.report()


def test_capture_replays_a_forward_for_every_shape_up_to_its_limit() -> None:
    from flodl.engine import capture

    torch.manual_seed(0)
    model = small_model().cuda().eval()
    with torch.no_grad():
        forward = capture(model, max_captures=2)
        first = forward(torch.ones(8, 16, device="cuda"))
        for size in (8, 4, 2, 8, 4):
            x = torch.randn(size, 16, device="cuda")
            assert torch.equal(forward(x), model(x))
    assert forward.captures == 2
    assert torch.equal(first, model(torch.ones(8, 16, device="cuda")))
