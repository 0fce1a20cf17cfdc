"""What an optimizer's update does in Python, which a recording would leave out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import SGD, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flodl.engine import TrainStep
from flodl.engine.optimizer.prepare import has_step_hooks, prepare


def hook(optimizer, args, kwargs) -> None:
    pass


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
def test_an_ordinary_optimizer_has_no_step_hooks(kind) -> None:
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    ExponentialLR(optimizer, 0.9)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not has_step_hooks(optimizer)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_one_optimizer_are_detected(when: str) -> None:
    one, other = (SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
    getattr(one, f"register_step_{when}_hook")(hook)
    assert has_step_hooks(one)
    assert not has_step_hooks(other)


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_are_detected(register) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))])
    handle = register(hook)
    assert has_step_hooks(optimizer)
    handle.remove()
    assert not has_step_hooks(optimizer)


def test_an_empty_group_is_prepared_like_the_others() -> None:
    with FakeTensorMode():
        parameter = nn.Parameter(torch.zeros(2, device="cuda"))
        optimizer = AdamW([{"params": [parameter]}, {"params": [], "weight_decay": 0.0}])
        assert prepare(optimizer).capturable
        assert [group["lr"].device.type for group in optimizer.param_groups] == ["cuda", "cuda"]


def test_numbers_that_an_optimizer_keeps_on_the_host_move_to_the_device() -> None:
    with FakeTensorMode():
        parameter = nn.Parameter(torch.zeros(2, device="cuda"))
        optimizer = NAdam([parameter])
        on_host = {"step": torch.tensor(3.0), "mu_product": torch.tensor(0.5)}
        optimizer.state[parameter] = {**on_host, "exp_avg": torch.zeros(2, device="cuda")}
        prepare(optimizer)
        assert {value.device.type for value in optimizer.state[parameter].values()} == {"cuda"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"nesterov": True}, {"dampening": 0.5}, {"weight_decay": 0.1, "maximize": True}],
    ids=str,
)
def test_fused_sgd_updates_a_parameter_that_is_unfrozen_later(settings: dict) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    plain = copy.deepcopy(model)
    settings = {"lr": 0.1, "momentum": 0.9, "fused": True, **settings}
    optimizer = SGD(model.parameters(), **settings)
    step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="eager")
    # In separate groups, torch accepts any mix of them.
    by_hand = SGD([{"params": part.parameters()} for part in plain], **settings)
    model[0].requires_grad_(False)
    plain[0].requires_grad_(False)
    for number in range(6):
        if number == 3:
            model[0].requires_grad_(True)
            plain[0].requires_grad_(True)
        x = torch.randn(5, 3)
        step(x)
        by_hand.zero_grad()
        plain(x).square().mean().backward()
        by_hand.step()
    assert len(optimizer.param_groups) == 1
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)
