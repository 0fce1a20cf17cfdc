"""The form of carried values decides which recording or compiled code fits a step."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder
from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.program.carried import Carried
from flodl.engine.state.snapshot import Snapshot
from flodl.engine.tiers.plan import plan_tiers
from flodl.observe import CarriedValues


def carried_by(*values: Any, batch: int | None = 2) -> Carried:
    holder = CarriedValues((), len(values))
    holder.carried, holder.batch = values, batch
    return Carried([holder])


@pytest.mark.parametrize(
    "value",
    [
        None,
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(3, 2).T,
        torch.zeros(2, 3, requires_grad=True),
        [torch.zeros(2, 3)],
    ],
    ids=["unset", "shape", "dtype", "strides", "history", "structure"],
)
def test_values_that_need_another_program_have_another_form(value: Any) -> None:
    usual = carried_by(torch.zeros(2, 3)).form()
    assert carried_by(torch.ones(2, 3)).form() == usual
    assert carried_by(value).form() != usual
    assert hash(carried_by(value).form()) is not None


def test_values_of_another_batch_size_have_another_form() -> None:
    assert carried_by(torch.zeros(3)).form() != carried_by(torch.zeros(3), batch=4).form()


def test_a_form_is_kept_if_the_step_ends_with_it() -> None:
    carried = carried_by(None, batch=None)
    unset = carried.form()
    carried.holders[0].carried, carried.holders[0].batch = (torch.zeros(2),), 2
    carried.note_step_from(unset)
    usual = carried.form()
    carried.note_step_from(usual)
    assert (carried.is_kept(unset), carried.is_kept(usual)) == (False, True)
    # A copy belongs to another model, whose steps it has not seen.
    assert copy.deepcopy(carried).is_kept(usual) is None


def test_a_state_that_grows_does_not_fill_the_memory() -> None:
    carried = carried_by(torch.zeros(1))
    for size in range(1000):
        form = carried.form()
        carried.holders[0].carried = (torch.zeros(size),)
        carried.note_step_from(form)
    assert carried.is_kept(form) is False


def test_values_on_a_device_become_dense() -> None:
    spread = torch.zeros(4, 5, 6, device="meta")[:, -1]
    dense, on_cpu = torch.zeros(2, 3, device="meta").T, torch.zeros(4, 5)[:, 0]
    carried = carried_by(spread, dense, on_cpu)
    carried.make_dense()
    found = carried.holders[0].carried
    assert found[0].stride() == (6, 1)
    assert found[1] is dense
    assert found[2] is on_cpu


class Mixing(nn.Linear):
    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        out = super().forward(x)
        return out if before is None else out + 0.5 * before


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(tier: str, accumulate: int = 1) -> TrainStep:
    torch.manual_seed(0)
    model = FlowBuilder(Mixing(4, 2)).using("before").tag("before").build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, mse, tier=tier, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_compiled_step_continues_after_resets_and_other_batch_sizes(
    quick_compiler, accumulate: int
) -> None:
    def trained(tier: str) -> tuple[TrainStep, list[Tensor]]:
        step, losses = new_step(tier, accumulate), []
        model = body_of(step).model
        for number in range(24):
            rows = 5 if number // accumulate == 9 else 8
            if number % (4 * accumulate) == 0 or rows == 5 or number == 10 * accumulate:
                model.reset_state()
            losses.append(step(torch.randn(rows, 4), torch.randn(rows, 2)))
        return step, losses

    (step, losses), (_, wanted) = trained("compiled"), trained("eager")
    assert step.tier == "compiled", step.report()
    assert step.report().compiles == 1
    assert torch.equal(torch.stack(losses), torch.stack(wanted))


def test_the_report_of_a_compiled_step_says_that_a_reset_is_why_a_batch_ran_eagerly(quick_compiler) -> None:
    step = new_step("compiled")
    for _ in range(12):
        step(torch.randn(8, 4), torch.randn(8, 2))
    assert step.tier == "compiled", step.report()
    body_of(step).model.reset_state()
    step(torch.randn(8, 4), torch.randn(8, 2))
    last = step.report().events[-1].reason
    assert last.startswith("a batch that starts without carried values, as after reset_state()")
    for _ in range(40):
        body_of(step).model.reset_state()
        step(torch.randn(8, 4), torch.randn(8, 2))
    reasons = [event.reason for event in step.report().events]
    assert any("batches start without carried values now" in reason for reason in reasons)
    assert not any("different shape" in reason for reason in reasons)


def test_a_difference_in_what_is_carried_is_found() -> None:
    step = new_step("eager")
    step(torch.randn(8, 4), torch.randn(8, 2))
    body = body_of(step)
    after = Snapshot(body)
    assert after.first_difference_now(body) is None
    assert body.undo.carried is not None
    (holder,) = body.undo.carried.holders
    holder.carried = (holder.carried[0] + 1.0,)
    assert after.first_difference_now(body) == "carried value 0 is off by 1"
    after.restore()
    assert after.first_difference_now(body) is None


def planned_on_cuda(step: TrainStep) -> tuple[list[str], str]:
    return plan_tiers(replace(body_of(step), device=torch.device("cuda")))


def test_a_graph_that_carries_values_is_captured_and_compiled() -> None:
    assert planned_on_cuda(new_step("auto")) == (["captured", "compiled"], "")


def test_a_module_that_carries_values_where_nobody_finds_them_stays_eager_on_cuda() -> None:
    class Stateful(nn.Linear):
        has_state = True

        def detach_state(self) -> None: ...

    model = Stateful(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    assert step(torch.randn(8, 4), torch.randn(8, 2)).isfinite()
    tiers, reason = planned_on_cuda(step)
    assert tiers == []
    assert "a module that is not a graph carries values from call to call" in reason
