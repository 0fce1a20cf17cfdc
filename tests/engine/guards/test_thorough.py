"""Changes to a model that a replay would miss are detected by an occasional inspection."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

from flodl.engine.guards.thorough import ThoroughGuard


def new_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def replace_module(model: nn.Sequential) -> None:
    model[0] = nn.Linear(2, 2)


def add_module(model: nn.Sequential) -> None:
    model.append(nn.ReLU())


def remove_module(model: nn.Sequential) -> None:
    del model[1]


def add_hook(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda *_: None)


def replace_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(2, 2))


def replace_buffer(model: nn.Sequential) -> None:
    model[1].running_mean = torch.ones(2)


def give_other_memory(model: nn.Sequential) -> None:
    model[0].weight.data = torch.zeros(2, 2)


def lie_another_way(model: nn.Sequential) -> None:
    model[0].weight.data = model[0].weight.data.t().contiguous().t()


def hook_a_gradient(model: nn.Sequential) -> None:
    model[0].bias.register_hook(lambda grad: grad * 0)


def hook_a_gradient_that_was_added_up(model: nn.Sequential) -> None:
    model[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (replace_module, "the module '0'"),
        (add_module, "the module '2'"),
        (remove_module, "the module '1'"),
        (add_hook, "the hook of '0'"),
        (replace_parameter, "the parameter '0.weight'"),
        (replace_buffer, "the buffer '1.running_mean'"),
        (give_other_memory, "the parameter '0.weight'"),
        (lie_another_way, "the parameter '0.weight'"),
        (hook_a_gradient, "the parameter '0.bias'"),
        (hook_a_gradient_that_was_added_up, "the parameter '0.bias'"),
    ],
)
def test_a_change_is_named(change, what: str) -> None:
    model = new_model()
    ground = ThoroughGuard(model)
    assert ground.what_changed() is None
    change(model)
    assert ground.what_changed() == f"{what} changed"


@pytest.mark.parametrize(
    "register",
    [
        modules.register_module_forward_pre_hook,
        modules.register_module_forward_hook,
        modules.register_module_full_backward_pre_hook,
        modules.register_module_full_backward_hook,
    ],
)
def test_global_module_hooks_are_detected(register) -> None:
    ground = ThoroughGuard(new_model(), with_tensors=False)
    handle = register(lambda *_: None)
    try:
        assert ground.what_changed().startswith("the hooks of all modules ")
    finally:
        handle.remove()
    assert ground.what_changed() is None


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop])
def test_training_itself_changes_nothing(kind) -> None:
    model = new_model()
    optimizer = kind(model.parameters(), lr=0.1)
    train(model, optimizer)
    ground = ThoroughGuard(model, optimizer=optimizer)
    train(model, optimizer)
    model.load_state_dict(model.state_dict())
    assert ground.what_changed() is None


def replace_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter)


def empty_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.state[parameter] = {}


def clear_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.state.clear()


@pytest.mark.parametrize(
    ("change", "what"), [(replace_state, "exp_avg"), (empty_state, "step"), (clear_state, "step")]
)
def test_replaced_optimizer_state_is_detected(change, what: str) -> None:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    ground = ThoroughGuard(model, optimizer=optimizer)
    change(optimizer, model[0].weight)
    assert ground.what_changed() == f"the state of the optimizer for '0.weight ({what})' changed"


def test_optimizer_state_of_a_parameter_that_is_unfrozen_later_is_not_a_change() -> None:
    model = new_model().eval()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    ground = ThoroughGuard(model, optimizer=optimizer)
    model[0].bias.requires_grad_(True)
    train(model, optimizer)
    assert ground.what_changed() is None


def test_without_tensors_a_replaced_buffer_is_not_a_change() -> None:
    model = new_model()
    ground = ThoroughGuard(model, with_tensors=False)
    replace_buffer(model)
    assert ground.what_changed() is None
    add_hook(model)
    assert ground.what_changed() is not None
