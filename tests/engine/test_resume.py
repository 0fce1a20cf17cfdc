"""A step that is resumed from its saved state continues as if it had never stopped."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.graph import FlowBuilder
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


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)

    def forward(self, x: torch.Tensor, *, h: torch.Tensor) -> torch.Tensor:
        return self.cell(x, h)


def carrying(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, TrainStep]:
    torch.manual_seed(seed)
    flow = FlowBuilder(Cell()).using("h", init=lambda x: x.new_zeros(len(x), 8)).tag("h")
    model = flow.through(nn.Linear(8, 2)).build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, TrainStep(model, optimizer, loss_of, tier="eager")


def test_values_that_a_graph_carries_are_part_of_the_state_and_are_copied() -> None:
    data = [batch for index, batch in enumerate(batches(8)) if index != 3]
    _, _, step = carrying(0)
    through = [step(*batch) for batch in data]

    first, optimizer, step = carrying(0)
    losses = [step(*batch) for batch in data[:4]]
    saved = copy.deepcopy([first.state_dict(), optimizer.state_dict()])
    state = step.state_dict()
    [carried] = state["carried"]
    value = carried["values"][0].clone()
    step(*data[4])
    assert torch.equal(carried["values"][0], value)

    second, fresh_optimizer, resumed = carrying(1)
    second.load_state_dict(saved[0])
    fresh_optimizer.load_state_dict(saved[1])
    resumed.load_state_dict(state)
    losses += [resumed(*batch) for batch in data[4:]]
    assert torch.equal(torch.stack(losses), torch.stack(through))
    assert torch.equal(carried["values"][0], value)


def test_a_state_from_before_the_first_call_drops_what_is_carried() -> None:
    _, _, step = carrying(0)
    empty = step.state_dict()
    first = step(*batches(1 + 3)[0])
    again = carrying(0)[2]
    again(*batches(4)[1])
    again.load_state_dict(empty)
    assert again.state_dict()["carried"] == [{"values": (None,), "batch": None}]
    assert first.isfinite()


def test_a_state_without_carried_values_leaves_those_of_the_graph() -> None:
    _, _, step = carrying(0)
    step(*batches(4)[0])
    state = step.state_dict()
    carried = state.pop("carried")
    step.load_state_dict(state)
    [after] = step.state_dict()["carried"]
    assert torch.equal(after["values"][0], carried[0]["values"][0])


@pytest.mark.parametrize(
    ("carried", "message"),
    [
        ([], "carried values of 0 graphs, and the model has 1"),
        (5, "carried values contain 5, expected a list"),
        ([{"values": (None, None), "batch": None}], r"carried\[0\]\['values'\] are \(None, None\)"),
        ([{"values": (3,), "batch": None}], r"carried\[0\]\['values'\]\[0\] is 3, which has no tensors"),
        ([{"values": (None,), "batch": -1}], r"carried\[0\]\['batch'\] is -1"),
        ([None], r"carried\[0\] is None, expected a dict"),
    ],
)
def test_carried_values_that_do_not_fit_are_refused_before_anything_changes(carried, message) -> None:
    _, _, step = carrying(0)
    step(*batches(4)[0])
    with pytest.raises(StepError, match=message):
        step.load_state_dict({**step.state_dict(), "steps": 99, "carried": carried})
    assert step.steps == 1


def test_carried_values_are_refused_by_a_model_that_carries_none() -> None:
    step, carried = fresh(0)[2], carrying(0)[2].state_dict()["carried"]
    with pytest.raises(StepError, match="carried values of 1 graphs, and the model has 0"):
        step.load_state_dict({**step.state_dict(), "carried": carried})
