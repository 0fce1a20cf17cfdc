"""What an optimizer's update needs of Python, which a recording would leave out."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flodl.engine.optimizer import has_step_hooks


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
def test_hooks_of_one_optimizer_are_seen(when: str) -> None:
    one, other = (SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
    getattr(one, f"register_step_{when}_hook")(hook)
    assert has_step_hooks(one)
    assert not has_step_hooks(other)


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_are_seen(register) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))])
    handle = register(hook)
    assert has_step_hooks(optimizer)
    handle.remove()
    assert not has_step_hooks(optimizer)
