"""On CUDA, skipped updates are reported on every tier, and nothing waits for the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep, no_waiting
from flodl.engine.report import Cause

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class RootOf(nn.Module):
    """Has a finite output; where the input is 0, its gradient is not finite."""

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return (x.abs() * factor).sqrt()


def root(model: nn.Module, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return RootOf()(model(x), factor).mean()


def new_step(tier: str, **settings) -> TrainStep:
    model = nn.Linear(4, 2).cuda()
    return TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-3), root, tier=tier, **settings)


@pytest.mark.parametrize("tier", ["eager", "captured"])
def test_skipped_updates_are_reported_without_waiting(tier, capsys) -> None:
    step = new_step(tier)
    x, good, bad = torch.ones(8, 4).cuda(), torch.ones(()).cuda(), torch.zeros(()).cuda()
    for _ in range(20):
        step(x, good)
    assert step.tier == tier
    with no_waiting():
        for _ in range(1200):
            step(x, bad)
    told = capsys.readouterr().err
    # The first looks come early; what they find depends on when the device has written its count.
    assert told.count("\n") in (1, 2)
    assert "updates were skipped, because the loss or a gradient was not finite" in told
    report = step.report()
    assert report.skipped == 1200
    assert [event.cause for event in report.events].count(Cause.NOT_FINITE) == told.count("\n")


def test_a_copy_of_a_step_with_a_reading_under_way_reports_too(capsys) -> None:
    step = new_step("eager")
    x, bad = torch.ones(8, 4).cuda(), torch.zeros(()).cuda()
    for _ in range(300):
        step(x, bad)
    copied = copy.deepcopy(step)
    assert copied.report().skipped == 300
    assert "all 300 updates so far were skipped" in capsys.readouterr().err
