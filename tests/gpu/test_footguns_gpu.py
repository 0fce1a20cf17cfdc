"""Every footgun of captured steps, one test each, silent ones first; the list is docs/footguns.md."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.core.errors import StepError
from flodl.engine import TrainStep
from flodl.engine.internals import body_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4)).cuda()


def captured(step_fn=mse, *, model=None, optimizer=torch.optim.Adam, **settings):
    """Give a model and its step, captured by twelve batches."""
    model = model or new_model()
    step = TrainStep(model, optimizer(model.parameters(), lr=1e-3), step_fn, tier="captured", **settings)
    feed(step, 12)
    return model, step


def feed(step: TrainStep, count: int, *others, size: int = 8) -> list[torch.Tensor]:
    source = torch.Generator("cuda").manual_seed(count)
    return [
        step(
            torch.randn(size, 16, device="cuda", generator=source),
            torch.randn(size, 4, device="cuda", generator=source),
            *others,
        )
        for _ in range(count)
    ]


def events(step: TrainStep) -> str:
    return "\n".join(event.reason for event in step.report().events)


def test_silent_python_in_the_step_function_stops_running() -> None:
    calls: list[int] = []

    def counting(model, x, y):
        calls.append(1)
        return mse(model, x, y)

    _, step = captured(counting)
    assert step.tier == "captured", step.report()
    before = len(calls)
    feed(step, 10)
    assert len(calls) == before


def test_silent_a_number_that_changes_later_stays_as_it_was_recorded() -> None:
    weight = {"value": 1.0}
    _, step = captured(lambda m, x, y: mse(m, x, y) * weight["value"])
    assert step.tier == "captured", step.report()
    weight["value"] = 0.0
    assert all(loss > 0 for loss in feed(step, 3))


def test_the_remedy_for_it_is_a_tensor_on_the_device() -> None:
    weight = torch.ones((), device="cuda")
    _, step = captured(lambda m, x, y: mse(m, x, y) * weight)
    weight.zero_()
    assert all(loss == 0 for loss in feed(step, 3))
    assert step.tier == "captured", step.report()


def test_the_other_remedy_is_a_number_in_the_batch() -> None:
    _, step = captured(lambda m, x, y, weight=1.0: mse(m, x, y) * weight)
    assert all(loss == 0 for loss in feed(step, 2, 0.0))
    assert "a different shape" in events(step)


def test_silent_an_attribute_of_a_module_stays_as_it_was_recorded() -> None:
    model, step = captured()
    model[1].p = 1.0
    model[2].bias.data.zero_()
    x = torch.ones(8, 16, device="cuda")
    loss = step(x, torch.zeros(8, 4, device="cuda"))
    assert loss > 0  # with p=1 every output, and so the loss, would be zero


def test_what_is_drawn_on_the_cpu_stays_as_it_was_recorded_and_that_is_said() -> None:
    drawn: list[float] = []

    def dropping(model, x, y):
        drawn.append(float(torch.rand([])))
        return mse(model, x, y) * (0.0 if drawn[-1] < 0.0 else 1.0)

    _, step = captured(dropping)
    assert step.tier == "captured", step.report()
    assert "random numbers that the step draws on the CPU stay as they were recorded" in step.report().reason
    before = len(drawn)
    feed(step, 3)
    assert len(drawn) == before


def test_silent_grad_is_not_refreshed_by_a_replay() -> None:
    model, step = captured(clip_norm=100.0)
    feed(step, 1, size=5)  # a ragged batch runs as Python and leaves its gradients
    before = model[0].weight.grad.clone()
    feed(step, 3)
    assert torch.equal(model[0].weight.grad, before)
    assert step.grad_norm > 0


def test_silent_a_hook_from_before_runs_only_while_it_is_recorded() -> None:
    model, calls = new_model(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    _, step = captured(model=model)
    assert step.tier == "captured", step.report()
    before = len(calls)
    feed(step, 10)
    assert len(calls) == before


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda model: model[0].register_forward_hook(lambda *_: None), "the hook of '0' changed"),
        (lambda model: model.__setitem__(1, nn.Identity()), "the module '1' changed"),
        (lambda model: torch.set_float32_matmul_precision("high"), "'float32_matmul_precision' changed"),
        (lambda model: setattr(model[0].bias, "data", torch.zeros_like(model[0].bias)), "moved or replaced"),
    ],
    ids=["hook", "module", "switch", "data"],
)
def test_what_a_replay_cannot_see_is_seen_by_the_inspection(change, what: str, monkeypatch) -> None:
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY", 64)
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY_S", 1e9)
    before = torch.get_float32_matmul_precision()
    try:
        model, step = captured()
        assert step.tier == "captured", step.report()
        change(model)
        feed(step, 70)
        assert what in events(step)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_replaced_parameter_is_an_error_of_the_next_inspection(monkeypatch) -> None:
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY", 64)
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY_S", 1e9)
    model, step = captured()
    model[2].bias = nn.Parameter(torch.zeros(4).cuda())
    with pytest.raises(StepError, match=r"at '2\.bias': this parameter was replaced"):
        feed(step, 70)


def test_a_number_that_changes_in_every_step_is_found_by_the_trial() -> None:
    _, step = captured(lambda m, x, y: mse(m, x, y) * (1 + random.random()))
    assert step.tier == "eager"
    assert step.report().reason.startswith("the captured step differs from eager: ")


def test_a_learning_rate_that_is_assigned_is_used_at_once_without_recording_anew() -> None:
    model, step = captured()
    body_of(step).optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    feed(step, 3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert step.tier == "captured"
    assert len(step.report().events) == 1
    body_of(step).optimizer.param_groups[0]["lr"] = 0.1
    feed(step, 1)
    assert not torch.equal(before[0], model[0].weight)


def test_other_settings_of_a_group_are_noticed_and_the_step_is_recorded_anew() -> None:
    _, step = captured()
    body_of(step).optimizer.param_groups[0]["weight_decay"] = 0.5
    feed(step, 12)
    assert "the optimizer's weight_decay was changed" in events(step)
    assert step.tier == "captured", step.report()


def test_a_group_that_joins_later_learns() -> None:
    model = new_model()
    optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-2)
    step = TrainStep(model, optimizer, mse, tier="captured", precision="fp16")
    feed(step, 12)
    before = model[2].weight.detach().clone()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    feed(step, 12)
    assert "a different number of groups" in events(step)
    assert (before - model[2].weight).abs().max() < 1  # unscaled like the others
    assert not torch.equal(before, model[2].weight)
    assert step.tier == "captured", step.report()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.eval(), "a module was switched between training and evaluation"),
        (lambda m: m[0].requires_grad_(False), "a parameter was frozen or thawed"),
        (lambda m: setattr(m[0].weight, "data", m[0].weight.data.clone()), "moved or replaced"),
    ],
    ids=["eval", "freeze", "moved"],
)
def test_what_rests_on_the_model_is_checked_before_every_replay(change, what: str) -> None:
    model, step = captured()
    change(model)
    feed(step, 1)
    assert step.tier == "eager"
    assert what in events(step)
    feed(step, 10)
    assert step.tier == "captured", step.report()


def test_loading_weights_in_place_needs_nothing() -> None:
    model, step = captured()
    other = new_model()
    model.load_state_dict(other.state_dict())
    model.eval()
    feed(step, 12)
    assert step.tier == "captured", step.report()


def test_a_buffer_that_is_replaced_in_every_forward_is_refused_with_its_name() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return self.linear(x)

    model, step = captured(model=Counting().cuda())
    assert step.tier == "eager"
    assert "replaces the buffer seen of Counting" in step.report().reason
    assert model.seen == 12


def test_a_number_on_the_cpu_in_the_batch_is_refused() -> None:
    model = new_model()
    step = TrainStep(
        model, torch.optim.Adam(model.parameters()), lambda m, x, y, w: mse(m, x, y) * w, tier="captured"
    )
    feed(step, 8, torch.tensor(0.5))
    assert step.tier == "eager"
    assert "the batch holds one number on the CPU" in step.report().reason


def test_moving_the_batch_inside_the_step_is_refused_with_the_line() -> None:
    model = new_model()
    step = TrainStep(
        model,
        torch.optim.Adam(model.parameters()),
        lambda m, x, y: mse(m, x.cuda(), y.cuda()),
        tier="captured",
    )
    for _ in range(8):
        step(torch.randn(8, 16), torch.randn(8, 4))
    assert step.tier == "eager"
    assert "x.cuda()" in step.report().reason


def test_control_flow_by_data_is_refused_with_the_line() -> None:
    def branching(model, x, y):
        loss = mse(model, x, y)
        if loss > 100:
            return loss * 0.1
        return loss

    _, step = captured(branching)
    assert step.tier == "eager"
    assert "if loss > 100:" in step.report().reason


def test_a_batch_that_is_changed_after_the_call_does_no_harm() -> None:
    def run(tier: str) -> torch.Tensor:
        model = new_model()
        step = TrainStep(model, torch.optim.Adam(model.parameters()), mse, tier=tier)
        torch.manual_seed(1)
        x, y = torch.empty(8, 16, device="cuda"), torch.empty(8, 4, device="cuda")
        losses = []
        for number in range(20):
            x.fill_(number)
            y.fill_(-number)
            losses.append(step(x, y))
            x.fill_(torch.nan)
        return torch.stack(losses)

    assert torch.equal(run("captured"), run("eager"))


def test_one_buffer_for_all_micro_batches_does_no_harm() -> None:
    def run(tier: str) -> tuple[torch.Tensor, str]:
        model = new_model()
        step = TrainStep(model, torch.optim.Adam(model.parameters()), mse, tier=tier, accumulate=2)
        torch.manual_seed(1)
        x, y = torch.empty(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda")
        return torch.stack([step(x.fill_(number % 2 + 1), y) for number in range(24)]), step.tier

    losses, tier = run("captured")
    assert tier == "captured"
    assert torch.equal(losses, run("eager")[0])


def test_another_layout_of_the_same_numbers_is_another_shape() -> None:
    _, step = captured()
    x = torch.randn(16, 8, device="cuda").t()
    for _ in range(5):
        assert torch.isfinite(step(x, torch.randn(8, 4, device="cuda")))
    assert step.report().captures == 2


def test_losses_and_values_that_are_kept_stay_as_they_were() -> None:
    _, step = captured(lambda m, x, y: (mse(m, x, y), {"mean": x.mean()}))
    first = step(torch.ones(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda"))
    values, kept = step.values, first.clone()
    feed(step, 5)
    assert torch.equal(first, kept)
    assert values["mean"] == 1


class Keeping(nn.Linear):
    """Keeps what it gave, with its history, as models do that show their attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        self.all = {"last": [self.last]}
        return self.last


def tagged_graph() -> nn.Module:
    flow = FlowBuilder(nn.Linear(16, 32)).through(nn.GELU()).tag("hidden").through(nn.Linear(32, 4))
    return flow.tag("out").build()


@pytest.mark.parametrize("tier", ["captured", "compiled"])
@pytest.mark.parametrize(
    "make", [tagged_graph, lambda: nn.Sequential(Keeping(16, 32), nn.GELU(), nn.Linear(32, 4))]
)
def test_a_model_may_keep_what_it_computed(make, tier) -> None:
    torch.manual_seed(0)
    model = make().cuda()
    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), mse, tier=tier)
    with warnings.catch_warnings():
        # torch warns where gradients are added up on another stream than the step's.
        warnings.filterwarnings("error", "The AccumulateGrad node's stream")
        feed(step, 30)
        feed(step, 3, size=5)
        feed(step, 3)
    assert step.tier == tier, step.report()


def test_silent_what_a_model_keeps_is_of_the_last_step_that_ran_as_python() -> None:
    model, step = captured(model=nn.Sequential(Keeping(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda())
    assert step.tier == "captured", step.report()
    kept = model[0].last.clone()
    ones, zeros = torch.ones(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda")
    step(ones, zeros)
    assert torch.equal(model[0].last, kept)  # of the last window that was compared with eager
    feed(step, 1, size=5)
    assert model[0].last.shape[0] == 5
    step(ones, zeros)
    assert model[0].last.shape[0] == 5


class KeepingSometimes(nn.Linear):
    """Keeps what it gave at first, with its history."""

    first: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.first is None:
            self.first = out
        return out


def test_a_history_that_stays_from_step_to_step_is_named() -> None:
    model = nn.Sequential(KeepingSometimes(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    model, step = captured(model=model)
    assert step.tier == "eager"
    assert "the attribute '0.first' keeps its autograd history from step to step" in events(step), events(
        step
    )
    assert model[0].first.grad_fn is not None


class Tied(nn.Module):
    """Keeps a view of its weight, through which gradients flow in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.out = nn.Linear(16, 16, bias=False, device="cuda"), nn.Linear(16, 4, device="cuda")
        self.turned = self.line.weight.t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.linear(self.line(x).tanh(), self.turned))


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_silent_a_view_of_a_weight_that_a_model_keeps_goes_on_learning(tier) -> None:
    def losses(tier) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = Tied()
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier=tier)
        return torch.stack(feed(step, 20)), step

    wanted, _ = losses("eager")
    found, step = losses(tier)
    assert torch.equal(found, wanted)
    assert "the attribute 'turned' keeps its autograd history from step to step" in events(step), events(step)


class Moving(nn.Module):
    """Moves a target, whose parameters no optimizer holds, in the forward."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(16, 4), nn.Linear(16, 4).requires_grad_(False)
        self.replaces = replaces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters()):
                if self.replaces:
                    target.data = target.data * 0.95 + online.data * 0.05
                else:
                    target.lerp_(online, 0.05)
        return self.online(x) - self.target(x + 1)


@pytest.mark.parametrize("replaces", [False, True])
def test_silent_a_target_that_the_forward_moves_is_that_of_eager(replaces) -> None:
    def run(tier) -> tuple[torch.Tensor, TrainStep, nn.Module]:
        torch.manual_seed(0)
        model = Moving(replaces=replaces).cuda()
        step = TrainStep(model, torch.optim.SGD(model.online.parameters(), lr=0.1), mse, tier=tier)
        return torch.stack(feed(step, 20)), step, model

    wanted, _, model = run("eager")
    found, step, other = run("captured")
    assert torch.equal(found, wanted)
    assert torch.equal(model.target.weight, other.target.weight)
    assert step.tier == ("eager" if replaces else "captured"), step.report()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("zero", ["by None", "by zero", "never", "never, with a backward of its own"])
def test_silent_gradients_of_parameters_outside_the_optimizer_are_those_of_eager(zero, accumulate) -> None:
    def run(tier) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = new_model()
        first, other = model[0].parameters(), torch.optim.SGD(model[2].parameters(), lr=0.01)
        step = TrainStep(
            model, torch.optim.SGD(first, lr=0.1), mse, tier=tier, accumulate=accumulate, tail="eager"
        )
        source, losses = torch.Generator("cuda").manual_seed(0), []
        for _ in range(20 * accumulate):
            x = torch.randn(8, 16, device="cuda", generator=source)
            losses.append(step(x, x[:, :4].contiguous()))
            if not step.is_between_updates:
                continue
            if "own" in zero:
                model[2](torch.ones(2, 32, device="cuda")).square().mean().backward()
            other.step()
            if "never" not in zero:
                other.zero_grad(set_to_none=zero == "by None")
        return torch.stack(losses), step

    wanted, _ = run("eager")
    found, step = run("captured")
    assert step.tier == "captured", step.report()
    assert torch.equal(found, wanted)


def test_silent_gradients_of_an_unused_part_outside_the_optimizer_are_cleared_by_a_replay() -> None:
    model = new_model()
    model.extra = nn.Linear(4, 4, device="cuda")
    trained = [*model[0].parameters(), *model[2].parameters()]
    extra, model.forward = model.extra, lambda x: model[2](model[1](model[0](x)))
    step = TrainStep(model, torch.optim.SGD(trained, lr=0.1), mse, tier="captured")
    feed(step, 20)
    assert step.tier == "captured", step.report()
    extra(torch.ones(2, 4, device="cuda")).sum().backward()
    feed(step, 1)
    assert extra.weight.grad is None


def test_a_batch_that_is_written_to_keeps_the_step_eager() -> None:
    def halving(model, x, y):
        x.mul_(0.5)
        return mse(model, x, y)

    _, step = captured(halving)
    assert step.tier == "eager"
    assert "it writes into its batch" in events(step), events(step)


def test_a_batch_whose_gradient_is_wanted_keeps_the_step_eager() -> None:
    model = new_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="captured")
    for _ in range(8):
        x = torch.randn(8, 16, device="cuda", requires_grad=True)
        step(x, torch.zeros(8, 4, device="cuda"))
        assert x.grad is not None
    assert "leaves a gradient there" in events(step), events(step)


def test_a_history_that_is_held_outside_the_model_is_named() -> None:
    held: list[torch.Tensor] = []

    def keeping(model, x, y):
        loss = mse(model, x, y)
        held[:] = [loss]
        return loss

    _, step = captured(keeping)
    assert step.tier == "eager"
    assert "a tensor of an earlier step is kept with its autograd history" in events(step), events(step)
    assert torch.isfinite(torch.stack(feed(step, 3))).all()


def test_a_generator_of_ones_own_keeps_the_step_eager() -> None:
    source = torch.Generator("cuda").manual_seed(0)

    def noisy(model, x, y):
        return mse(model, x + torch.randn(x.shape, device="cuda", generator=source), y)

    _, step = captured(noisy)
    assert step.tier == "eager"
    assert torch.isfinite(torch.stack(feed(step, 3))).all()
    _, other = captured()
    assert other.tier == "captured", other.report()


def test_strict_turns_a_hidden_wait_into_an_error() -> None:
    from flodl.core import StepError

    model = new_model()
    step = TrainStep(
        model,
        torch.optim.Adam(model.parameters()),
        lambda m, x, y: mse(m, x, y) * (1 if y.sum().item() else 2),
        strict=True,
    )
    with pytest.raises(StepError, match="the host waited for the device"):
        feed(step, 1)
    assert torch.isfinite(torch.randn(3, device="cuda")).all()
