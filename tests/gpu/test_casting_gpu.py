"""What is around a step on CUDA: autocast, cycling momenta, shared learning rates, losses among others."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep, capture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CASTING = partial(torch.autocast, "cuda", dtype=torch.bfloat16)


class Twice(nn.Module):
    """A model that uses one weight twice, whose gradient then depends on how often it is cast."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entry, self.layer, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entry(x)
        for _ in range(2):
            x = torch.tanh(self.layer(x))
        return self.last(x)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x).float(), y)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator("cuda").manual_seed(1)
    make = partial(torch.randn, device="cuda", generator=source)
    return [(make(8, 16), make(8, 4)) for _ in range(count)]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("whole", [False, True], ids=["each step", "whole loop"])
def test_a_step_inside_an_autocast_is_captured_with_eagers_bits(whole: bool) -> None:
    models = []
    for tier in ("eager", "captured"):
        model = Twice().cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), mse, tier=tier)
        with CASTING() if whole else nullcontext():
            for x, y in batches(30):
                with CASTING():
                    step(x, y)
        assert step.tier == tier, step.report()
        models.append(model)
    assert_same(*models)


def test_an_autocast_that_comes_later_is_not_passed_over() -> None:
    models = []
    for tier in ("eager", "captured"):
        model = Twice().cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), mse, tier=tier)
        for number, (x, y) in enumerate(batches(40)):
            with CASTING() if 15 <= number < 30 else nullcontext():
                step(x, y)
        assert step.tier == tier, step.report()
        models.append(model)
    told = [event.reason for event in step.report().events]
    assert any("torch.autocast was switched on or off" in reason for reason in told), told
    assert_same(*models)


def test_a_captured_forward_inside_an_autocast_reads_the_weights_as_they_are() -> None:
    model = Twice().cuda().eval()
    forward = capture(model)
    (x, _), *_ = batches(1)
    for _ in range(4):
        with torch.no_grad(), CASTING():
            given, expected = forward(x), model(x)
        assert torch.equal(given, expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
    assert forward.captures == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double().float(),
        lambda model: model.load_state_dict(
            {name: value + 1 for name, value in model.state_dict().items()}, assign=True
        ),
        lambda model: setattr(model, "last", nn.Linear(32, 4).cuda()),
    ],
    ids=["moved", "assigned", "replaced"],
)
def test_a_captured_model_is_recorded_again_where_its_weights_lie_elsewhere(change) -> None:
    model = Twice().cuda().eval()
    forward = capture(model)
    (x, _), *_ = batches(1)
    with torch.no_grad():
        forward(x)
        change(model)
        # Whatever was freed is written over.
        rubbish = [torch.full((32, 32), torch.nan, device="cuda") for _ in range(50)]
        assert torch.equal(forward(x), model(x))
    del rubbish


def test_a_captured_model_that_is_switched_is_recorded_again() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).cuda().eval()
    forward = capture(model)
    (x, _), *_ = batches(1)
    with torch.no_grad():
        before = forward(x)
        model.train()
        assert not torch.equal(forward(x), before)


@pytest.mark.parametrize("tier", ["captured", "compiled"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)])
def test_a_step_whose_momentum_cycles_is_recorded_without_its_update(kind, tier: str) -> None:
    models = []
    for asked in ("eager", tier):
        model = Twice().cuda()
        optimizer = kind(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=50)
        step = TrainStep(model, optimizer, mse, tier=asked)
        for x, y in batches(40):
            step(x, y)
            schedule.step()
        assert step.tier == asked, step.report()
        models.append(model)
    assert "the update stays outside" in step.report().reason
    if tier == "captured":
        assert_same(*models)
    else:
        for ours, theirs in zip(*(model.parameters() for model in models)):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", range(3, 8))
def test_a_setting_that_is_changed_while_a_tier_is_tried_does_not_refuse_it(number: int) -> None:
    models = []
    for tier in ("eager", "captured"):
        model = Twice().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = TrainStep(model, optimizer, mse, tier=tier)
        for place, (x, y) in enumerate(batches(20)):
            if place == number:
                optimizer.param_groups[0]["weight_decay"] = 0.5
            step(x, y)
        assert step.tier == tier, step.report()
        models.append(model)
    assert_same(*models)


def test_groups_that_share_a_learning_rate_can_be_given_others() -> None:
    models = []
    for tier in ("plain", "eager", "captured"):
        model = Twice().cuda()
        groups = [{"params": [*model.entry.parameters()]}, {"params": [*model.layer.parameters()]}]
        rate = torch.tensor(1e-2, device="cuda")
        optimizer = torch.optim.Adam(groups, lr=rate, fused=True, capturable=True)
        step = None if tier == "plain" else TrainStep(model, optimizer, mse, tier=tier)
        for number, (x, y) in enumerate(batches(40)):
            if number == 20:
                optimizer.param_groups[0]["lr"] = torch.tensor(1e-3, device="cuda") if step is None else 1e-3
            if number == 30:
                rate.fill_(1e-4)
            if step is not None:
                step(x, y)
                continue
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        models.append(model)
    assert step is not None
    assert step.tier == "captured", step.report()
    assert_same(models[0], models[1])
    assert_same(models[1], models[2])


def test_a_loss_that_is_one_of_several_numbers_is_captured() -> None:
    def one_of_several(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).square().mean(0)[1]

    losses, models = [], []
    for tier in ("eager", "captured"):
        model = Twice().cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), one_of_several, tier=tier)
        losses.append(torch.stack([step(x, y) for x, y in batches(20)]))
        models.append(model)
    assert step.tier == "captured", step.report()
    assert torch.equal(*losses)
    assert_same(*models)


@pytest.mark.parametrize("betas", [(0.4, 0.9), (0.1, 0.3), (0.0, 0.99), (0.5, 0.5)])
def test_adam_with_small_betas_keeps_torchs_bits(betas: tuple[float, float]) -> None:
    models = []
    for tier in ("eager", "captured"):
        model = Twice().cuda()
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3, betas=betas), mse, tier=tier)
        for x, y in batches(20):
            step(x, y)
        assert step.tier == tier, step.report()
        models.append(model)
    assert_same(*models)
