"""Changes to a model that a replay would not see are seen by looking, now and then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.engine.ground import Ground


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


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (replace_module, "the module '0'"),
        (add_module, "the module '2'"),
        (remove_module, "the module '1'"),
        (add_hook, "the hook of '0'"),
        (replace_parameter, "the parameter '0.weight'"),
        (replace_buffer, "the buffer '1.running_mean'"),
    ],
)
def test_what_changed_is_named(change, what: str) -> None:
    model = new_model()
    ground = Ground(model)
    assert ground.what_changed() is None
    change(model)
    assert ground.what_changed() == f"{what} changed"


def test_training_itself_changes_nothing() -> None:
    model = new_model()
    ground = Ground(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
    model.load_state_dict(model.state_dict())
    assert ground.what_changed() is None


def test_compiled_code_finds_its_tensors_by_itself() -> None:
    model = new_model()
    ground = Ground(model, with_tensors=False)
    replace_buffer(model)
    assert ground.what_changed() is None
    add_hook(model)
    assert ground.what_changed() is not None
