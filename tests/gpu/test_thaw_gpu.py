"""What comes late or from beside on CUDA: thawed parameters, waits of other threads, a dropped step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.capture import mailbox
from flodl.engine.capture.recording import rehearse
from flodl.engine.errors import NotCapturable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator("cuda").manual_seed(1)
    return [
        (
            torch.randn(8, 16, device="cuda", generator=source),
            torch.randn(8, 4, device="cuda", generator=source),
        )
        for _ in range(count)
    ]


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


@pytest.mark.parametrize(
    "kind",
    [
        MOMENTUM,
        partial(MOMENTUM, nesterov=True, weight_decay=0.01),
        partial(MOMENTUM, dampening=0.5),
        torch.optim.Adam,
        torch.optim.AdamW,
    ],
)
def test_a_part_that_is_thawed_late_learns_as_in_a_plain_loop(kind) -> None:
    data = batches(40)
    plain = new_model()
    # As `TrainStep` sets it. Parts in groups of their own: torch's fused SGD takes no mix in one group.
    optimizer = kind(
        [{"params": list(part.parameters())} for part in (plain[0], plain[2])],
        lr=torch.tensor(0.01, device="cuda"),
        fused=True,
    )
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    plain[0].requires_grad_(False)
    expected = []
    for number, (x, y) in enumerate(data):
        if number == 20:
            plain[0].requires_grad_(True)
        optimizer.zero_grad()
        loss = mse(plain, x, y)
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())

    model = new_model()
    step = TrainStep(model, kind(model.parameters(), lr=0.01), mse, tier="captured")
    model[0].requires_grad_(False)
    losses = []
    for number, (x, y) in enumerate(data):
        if number == 20:
            assert step.tier == "captured", step.report()
            model[0].requires_grad_(True)
        losses.append(step(x, y))
    assert step.tier == "captured", step.report()
    assert any("frozen or thawed" in event.reason for event in step.report().events)
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert_same_weights(plain, model)


@pytest.mark.parametrize("kind", [MOMENTUM, torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop])
def test_a_thawed_part_whose_first_update_is_bad_begins_with_the_next_one(kind) -> None:
    def train(*, poisoned: bool) -> nn.Module:
        model = new_model()
        step = TrainStep(model, kind(model.parameters(), lr=0.01), mse, tier="captured")
        model[0].requires_grad_(False)
        for number, (x, y) in enumerate(batches(40)):
            if number == 20:
                assert step.tier == "captured", step.report()
                model[0].requires_grad_(True)
                if poisoned:
                    step(x * torch.nan, y)
                    assert bool(step.skipped)
            step(x, y)
        assert step.tier == "captured", step.report()
        return model

    clean = train(poisoned=False)
    assert all(torch.isfinite(parameter).all() for parameter in clean.parameters())
    assert_same_weights(clean, train(poisoned=True))


# A trial begins with the fourth update.
@pytest.mark.parametrize("late_from", [2, 3, 4])
@pytest.mark.parametrize("kind", [MOMENTUM, torch.optim.Adam, torch.optim.RMSprop])
def test_a_part_that_is_first_used_when_a_trial_begins_does_not_refuse_the_tier(kind, late_from: int) -> None:
    models, data = [], batches(12)
    for tier in ("eager", "captured"):
        model = new_model()
        used = [model[0], model[1]]

        def through(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for part in used:  # noqa: B023
                x = part(x)
            return nn.functional.mse_loss(x[:, :4], y)

        step = TrainStep(model, kind(model.parameters(), lr=0.01), through, tier=tier)
        for number, (x, y) in enumerate(data, 1):
            if number == late_from:
                used.append(model[2])
            step(x, y)
        models.append(model)
    assert step.tier == "captured", step.report()
    assert_same_weights(*models)


def test_an_optimizer_that_has_stepped_before_is_captured() -> None:
    model = new_model()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    data = batches(20)
    mse(model, *data[0]).backward()
    optimizer.step()
    step = TrainStep(model, optimizer, mse, tier="captured")
    for x, y in data:
        step(x, y)
    assert step.tier == "captured", step.report()


def test_an_optimizer_with_an_empty_group_is_captured() -> None:
    model = new_model()
    groups = [{"params": model.parameters()}, {"params": [], "weight_decay": 0.0}]
    step = TrainStep(model, torch.optim.AdamW(groups, lr=0.01), mse, tier="captured")
    for x, y in batches(20):
        step(x, y)
    assert step.tier == "captured", step.report()


def from_another_thread(function: Callable[[], object]) -> list[object]:
    """Give what a function gave, or the error that it ended with, run beside this thread."""
    given: list[object] = []

    def run() -> None:
        try:
            given.append(function())
        except BaseException as error:
            given.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return given


def test_a_thread_that_waits_is_left_alone_while_a_step_is_rehearsed() -> None:
    x = torch.ones(3, device="cuda")
    assert rehearse(lambda: from_another_thread(lambda: x.sum().item())) == [3.0]
    with pytest.raises(NotCapturable, match=r"synchronizing CUDA operation at .*x\.mean\(\)\.item\(\)"):
        rehearse(lambda: x.mean().item())
    assert torch.cuda.get_sync_debug_mode() == 0
    assert x.sum().item() == 3.0


class Reading(torch.autograd.Function):
    """Reads a number on the way back, which runs in a thread of torch's own."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * grad.sum().item()


def test_a_wait_within_a_backward_is_found_with_its_line() -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(NotCapturable, match=r"synchronizing CUDA operation at .*grad\.sum\(\)\.item\(\)"):
        rehearse(lambda: Reading.apply(weight).sum().backward())
    assert torch.cuda.get_sync_debug_mode() == 0


def test_the_addresses_of_a_dropped_step_stay_until_the_device_was_waited_for() -> None:
    pytest.importorskip("triton")
    x = torch.ones(8, device="cuda")
    dropped = mailbox.open_mailbox([x])
    assert dropped is not None
    table = dropped.table
    del dropped
    assert any(left is table for left in mailbox.LEFT_TABLES[x.device])
    assert mailbox.open_mailbox([x]) is not None
    assert not any(left is table for left in mailbox.LEFT_TABLES[x.device])
