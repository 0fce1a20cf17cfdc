"""A bridge that is stepped before the optimizer, or never, is reported."""

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl import TrainStep
from flodl.optim import CosineScheduler, PlateauScheduler, apply


@pytest.fixture
def parts():
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def update(model, optimizer, num_updates=1):
    for _ in range(num_updates):
        optimizer.zero_grad()
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()


def test_a_step_before_the_first_update_is_reported_once(parts, capsys):
    bridge = apply(CosineScheduler(0.1, 0.0, 4), parts[1])
    for _ in range(4):
        bridge.step()
        update(*parts)
    assert capsys.readouterr().err.count("bridge.step() was called before optimizer.step()") == 1


def test_steps_after_the_updates_are_not_reported(parts, capsys):
    bridge = apply(CosineScheduler(0.1, 0.0, 4), parts[1])
    for _ in range(4):
        update(*parts)
        bridge.step()
    assert capsys.readouterr().err == ""


def test_steps_without_updates_as_for_a_plot_are_not_reported(parts, capsys):
    bridge = apply(CosineScheduler(0.1, 0.0, 4), parts[1])
    for _ in range(4):
        bridge.step()
    assert capsys.readouterr().err == ""


def test_a_first_update_that_a_grad_scaler_leaves_out_is_not_reported(parts, capsys):
    model, optimizer = parts
    bridge = apply(CosineScheduler(0.1, 0.0, 4), optimizer)
    (model(torch.ones(2, 2)).sum() * torch.inf).backward()
    bridge.step()
    update(*parts)
    bridge.step()
    assert capsys.readouterr().err == ""


def test_a_bridge_that_is_never_stepped_is_reported_at_the_end(parts, capsys):
    bridge = apply(CosineScheduler(0.1, 0.0, 100), parts[1])
    update(*parts, num_updates=120)
    assert capsys.readouterr().err == ""
    del bridge
    assert "bridge.step() was never called" in capsys.readouterr().err


@pytest.mark.parametrize(
    "schedule",
    [lambda step: 0.1, PlateauScheduler(0.1, patience=2, factor=0.5), CosineScheduler(0.1, 0.0, 100)],
)
def test_a_bridge_that_has_nothing_to_do_is_not_reported(parts, capsys, schedule):
    bridge = apply(schedule, parts[1])
    if isinstance(schedule, CosineScheduler):
        bridge.set_step(10)
    update(*parts, num_updates=120)
    del bridge
    assert "never called" not in capsys.readouterr().err


def test_a_bridge_that_a_training_step_advances_is_not_reported(parts, capsys):
    model, optimizer = parts
    step = TrainStep(
        model, optimizer, lambda m, x: m(x).sum(), tier="eager", schedule=CosineScheduler(0.1, 0.0, 100)
    )
    for _ in range(120):
        step(torch.ones(2, 2))
    del step
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_bridge_can_be_copied(parts, copied):
    bridge = apply(CosineScheduler(0.1, 0.0, 4), parts[1])
    other = copied(bridge)
    other.step()
    assert (bridge.current_step, other.current_step) == (0, 1)
