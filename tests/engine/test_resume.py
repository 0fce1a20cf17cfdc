"""A step that is resumed from its saved state continues as if it had never stopped."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.optim import CosineScheduler


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor):
    out = model(x)
    return nn.functional.mse_loss(out.float(), y), {"size": out.float().abs().mean()}


def fresh(seed: int, **settings) -> tuple[nn.Module, torch.optim.Optimizer, TrainStep]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, TrainStep(model, optimizer, loss_of, **settings)


def batches(count: int, *, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(5)
    made = [
        (torch.randn(size, 4, generator=source), torch.randn(size, 2, generator=source)) for _ in range(count)
    ]
    made[3][0].fill_(torch.nan)
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": CosineScheduler(1e-2, 1e-4, 12), "clip_norm": 0.5},
        {"accumulate": 3, "schedule": CosineScheduler(1e-2, 1e-4, 4)},
        {"precision": "fp16", "clip_norm": 1.0},
        {"precision": "bf16", "accumulate": 2},
    ],
    ids=str,
)
def test_stopped_and_resumed_equals_never_stopped(settings: dict) -> None:
    data = batches(12)
    model, _, step = fresh(0, **settings)
    through = [step(*batch) for batch in data]
    means = step.means()

    first, optimizer, step = fresh(0, **settings)
    losses = [step(*batch) for batch in data[:6]]
    saved = json.loads(json.dumps(step.state_dict()))

    second, fresh_optimizer, resumed = fresh(1, **settings)
    second.load_state_dict(first.state_dict())
    fresh_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(saved)
    losses += [resumed(*batch) for batch in data[6:]]

    assert torch.equal(torch.stack(losses).nan_to_num(), torch.stack(through).nan_to_num())
    for name, value in model.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert resumed.means() == means
    assert resumed.report().skipped == 1
    assert (resumed.report().steps, resumed.updates) == (12, 12 // settings.get("accumulate", 1))


def test_a_step_has_updated_once_a_window_is_full_and_again_after_a_resume() -> None:
    first, second, *_ = batches(4)
    _, _, step = fresh(0, accumulate=2)
    seen = []
    for _ in range(2):
        for batch in (first, second):
            seen.append(step.has_updated)
            step(*batch)
        seen.append(step.has_updated)
        step.load_state_dict(step.state_dict())
    assert seen == [False, False, True] * 2


def test_the_loss_scale_of_fp16_is_resumed() -> None:
    _, _, step = fresh(0, precision="fp16")
    for batch in batches(6):
        step(*batch)
    _, _, resumed = fresh(0, precision="fp16")
    resumed.load_state_dict(step.state_dict())
    scale, clean_updates, _ = resumed.state_dict()["scaler"]
    assert (scale, clean_updates) == (32768, 2)
    assert resumed.state_dict()["scaler"] == step.state_dict()["scaler"]


def test_the_usual_batch_size_is_resumed_so_a_tail_is_still_a_tail() -> None:
    _, _, step = fresh(0, tail="drop")
    step(*batches(4)[0])
    _, _, resumed = fresh(0, tail="drop")
    resumed.load_state_dict(step.state_dict())
    assert torch.isnan(resumed(torch.ones(3, 4), torch.ones(3, 2)))


def test_a_half_full_window_cannot_be_saved() -> None:
    _, _, step = fresh(0, accumulate=4)
    step(*batches(4)[0])
    with pytest.raises(StepError, match=r"half full \(1 of 4 micro-batches\).*Save after an update"):
        step.state_dict()
    step.flush()
    assert step.state_dict()["updates"] == 1


def test_a_state_with_a_scaler_needs_a_step_with_one() -> None:
    _, _, step = fresh(0, precision="fp16")
    _, _, other = fresh(0)
    with pytest.raises(StepError, match="taken with a loss scaler, and precision='fp32' does not match"):
        other.load_state_dict(step.state_dict())
    with pytest.raises(StepError, match="taken without a loss scaler"):
        step.load_state_dict(other.state_dict())


def test_a_state_with_a_schedule_needs_a_step_with_one() -> None:
    _, _, step = fresh(0, schedule=CosineScheduler(1e-2, 1e-4, 12))
    _, _, other = fresh(0)
    with pytest.raises(StepError, match="taken with a schedule"):
        other.load_state_dict(step.state_dict())
    with pytest.raises(StepError, match="taken without a schedule"):
        step.load_state_dict(other.state_dict())


def test_loading_into_a_step_that_has_run_replaces_its_means() -> None:
    _, _, step = fresh(0)
    step(*batches(4)[0])
    saved, wanted = step.state_dict(), step.means()
    totals = dict(body_of(step).means.totals)
    for batch in batches(4)[1:3]:
        step(*batch)
    step.load_state_dict(saved)
    assert step.means() == wanted
    # A recording writes to these tensors.
    assert all(body_of(step).means.totals[names] is total for names, total in totals.items())
