"""The methods of torch's schedulers raise errors that say what to write."""

import copy
import pickle

import pytest
import torch

from flodl.core import ScheduleError
from flodl.engine import TrainStep
from flodl.optim import CosineScheduler, PlateauScheduler, WarmupScheduler, apply

COSINE = CosineScheduler(0.1, 0.0, 100)


def bridge():
    return apply(COSINE, torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))


@pytest.mark.parametrize(
    ("owner", "name", "advice"),
    [
        (COSINE, "step", r"a CosineScheduler has no step\. .*bridge\.step\(\) after every update"),
        (WarmupScheduler(COSINE, 0.1, 5), "step", r"pass it as schedule= to a TrainStep"),
        (COSINE, "get_last_lr", r"Write schedule\.lr\(step\)"),
        (COSINE, "state_dict", r"the state_dict\(\) of the TrainStep"),
        (PlateauScheduler(0.1, 2, 0.5), "step", r"Write schedule\.observe\(metric\)"),
        (bridge(), "get_last_lr", r"Write bridge\.lr"),
        (bridge(), "last_epoch", r"Write bridge\.current_step"),
    ],
)
def test_a_method_of_torch_schedulers_says_what_to_write(owner, name, advice):
    with pytest.raises(ScheduleError, match=advice) as raised:
        getattr(owner, name)
    assert isinstance(raised.value, AttributeError)


def test_a_metric_is_not_a_step():
    with pytest.raises(ScheduleError, match=r"step got float, and takes nothing.*observe\(metric\)"):
        bridge().step(0.3)


def test_the_schedule_of_a_step_is_not_advanced_twice():
    model = torch.nn.Linear(1, 1)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).sum(), schedule=COSINE
    )
    step(torch.ones(2, 1))
    with pytest.raises(ScheduleError, match=r"a TrainStep, which advances it .* twice\. Remove the call"):
        step.schedule.step()
    assert step.schedule.current_step == 1


def test_other_attributes_and_copies_are_as_usual():
    with pytest.raises(AttributeError, match="'CosineScheduler' object has no attribute 'colour'"):
        COSINE.colour  # noqa: B018
    assert copy.deepcopy(COSINE) == pickle.loads(pickle.dumps(COSINE)) == COSINE
    assert copy.deepcopy(bridge()).lr == 0.1
