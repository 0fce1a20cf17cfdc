"""The settings of torch's LR schedulers are described, and training does not change the description."""

import pytest
import torch
from torch.optim import lr_scheduler

from flodl.core.contents import Contents


class Halving(lr_scheduler.StepLR):
    """A scheduler of the user with a setting of its own."""

    def __init__(self, optimizer, every):
        self.every = every
        super().__init__(optimizer, every)

    def get_lr(self):
        return [rate * 0.5 ** (self.last_epoch // self.every) for rate in self.base_lrs]


PAIRS = {
    "gamma": [lambda o, v=v: lr_scheduler.StepLR(o, 1, gamma=v) for v in (0.5, 0.9)],
    "step_size": [lambda o, v=v: lr_scheduler.StepLR(o, v) for v in (1, 2)],
    "milestones": [lambda o, v=v: lr_scheduler.MultiStepLR(o, v) for v in ([1, 3], [1, 4])],
    "T_max": [lambda o, v=v: lr_scheduler.CosineAnnealingLR(o, v) for v in (10, 20)],
    "T_0": [lambda o, v=v: lr_scheduler.CosineAnnealingWarmRestarts(o, v) for v in (2, 4)],
    "power": [lambda o, v=v: lr_scheduler.PolynomialLR(o, 9, v) for v in (1.0, 2.0)],
    "patience": [lambda o, v=v: lr_scheduler.ReduceLROnPlateau(o, patience=v) for v in (1, 2)],
    "total_steps": [lambda o, v=v: lr_scheduler.OneCycleLR(o, 0.3, total_steps=v) for v in (10, 20)],
    "max_lrs": [lambda o, v=v: lr_scheduler.CyclicLR(o, 0.1, v) for v in (0.2, 0.3)],
    "every": [lambda o, v=v: Halving(o, v) for v in (1, 2)],
    "schedulers": [
        lambda o, v=v: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o), lr_scheduler.StepLR(o, 3, v)])
        for v in (0.5, 0.9)
    ],
}


def scheduler_of(make):
    return make(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9))


@pytest.mark.parametrize("name", PAIRS)
def test_schedulers_that_differ_in_one_setting_have_different_descriptions(name):
    one, other = (Contents().of(scheduler_of(make)) for make in PAIRS[name])
    assert name in [key for key in one if one[key] != other[key]]
    assert Contents().of(scheduler_of(PAIRS[name][0])) == one


@pytest.mark.parametrize("name", PAIRS)
def test_the_progress_of_a_scheduler_is_not_described(name):
    scheduler = scheduler_of(PAIRS[name][0])
    before = Contents().of(scheduler)
    for _ in range(5):
        scheduler.optimizer.step()
        scheduler.step(*([1.0] if name == "patience" else []))
    assert Contents().of(scheduler) == before


def test_the_settings_of_nested_schedulers_are_described_by_their_numbers():
    def make(optimizer):
        parts = [lr_scheduler.LinearLR(optimizer, 0.5), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, [3])

    described = Contents().of(scheduler_of(make))
    assert described["milestones"] == [3]
    assert described["schedulers"]["1"] == {"class": "ExponentialLR", "gamma": 0.9}


def test_the_functions_of_a_scheduler_are_described_with_what_they_read():
    described = []
    for decay in (0.5, 0.9):
        scheduler = scheduler_of(lambda o, d=decay: lr_scheduler.LambdaLR(o, lambda epoch: d**epoch))
        described.append(Contents().of(scheduler)["lr_lambdas"])
    assert described[0] != described[1]
