"""Means of the loss and of named values, on the device of the step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.compile.runner import with_own_code
from flodl.engine.program.running_means import RunningMeans, account, account_on_host


class Answer(nn.Module):
    """A model with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))


def told(model, loss: torch.Tensor, *others):
    """Return the mean of the batch as the loss."""
    return loss.mean() + 0 * model.number


def new_step(step_fn=told, **settings) -> TrainStep:
    model = Answer()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def test_means_weight_batches_by_their_samples() -> None:
    step = new_step()
    step(torch.full((6,), 1.0))
    step(torch.full((2,), 5.0))
    assert step.means()["loss"] == 2.0


def test_with_accumulation_the_mean_is_over_all_samples() -> None:
    step = new_step(accumulate=2)
    for size, value in ((4, 1.0), (4, 2.0), (4, 3.0), (1, 9.0)):
        step(torch.full((size,), value))
    assert math.isclose(float(step.means()["loss"]), (4 * 1 + 4 * 2 + 4 * 3 + 9) / 13)


def test_pieces_of_a_batch_that_ran_out_of_memory_count_once() -> None:
    def hungry(model, x):
        if len(x) > 2:
            raise torch.OutOfMemoryError("a small device")
        return told(model, x)

    step = new_step(hungry)
    step(torch.arange(5.0))
    assert step.means()["loss"] == 2.0


def test_batches_that_are_not_finite_are_left_out() -> None:
    step = new_step()
    step(torch.full((4,), 2.0))
    step(torch.full((4,), torch.nan))
    step(torch.full((4,), torch.inf))
    assert step.means()["loss"] == 2.0
    assert step.report().skipped == 2


def test_a_finite_batch_before_a_bad_one_counts() -> None:
    step = new_step(accumulate=2)
    for value in (1.0, torch.nan, 3.0, 5.0):
        step(torch.full((4,), value))
    assert math.isclose(float(step.means()["loss"]), (1 + 3 + 5) / 3)


def test_a_finite_batch_counts_even_if_its_update_is_skipped() -> None:
    step = new_step(accumulate=3)
    for value in (1.0, torch.nan, 3.0):
        step(torch.full((4,), value))
    assert step.means()["loss"] == 2.0
    assert bool(step.skipped)
    assert step.num_skipped == 1


def test_means_keep_the_precision_of_their_values() -> None:
    third = torch.tensor(1.0).double() / 3
    step = new_step(lambda model, x: (told(model, x).double() + third, {"third": third, "many": 2**24 + 1}))
    step(torch.zeros(4))
    assert step.means()["loss"] == third
    assert step.means()["third"] == third
    assert step.means()["many"] == 2**24 + 1


def test_a_weight_may_be_a_tensor_on_the_device() -> None:
    ours, plain = (RunningMeans(torch.device("cpu")) for _ in range(2))
    for loss, weight in ((0.1, 3), (0.7, 5), (torch.nan, 2)):
        value = {"double": torch.tensor(2 * loss)}
        ours.add(torch.tensor(loss), value, weight=torch.tensor(float(weight)).double(), opens=True)
        plain.add(torch.tensor(loss), value, weight=weight, opens=True)
    assert ours.means() == plain.means()


def test_named_values_have_means_even_if_they_are_not_in_every_batch() -> None:
    def step_fn(model, x):
        values = {"double": 2 * x.mean()}
        if len(x) == 2:
            values["pair"] = x.sum()
        return told(model, x), values

    step = new_step(step_fn)
    step(torch.full((6,), 1.0))
    step(torch.full((2,), 5.0))
    means = step.means()
    assert {name: float(value) for name, value in means.items()} == {"loss": 2.0, "double": 4.0, "pair": 10.0}


def test_plain_numbers_have_means_and_vectors_do_not() -> None:
    step = new_step(lambda model, x: (told(model, x), {"three": 3, "all": x}))
    step(torch.arange(4.0))
    assert step.means()["three"] == 3
    assert "all" not in step.means()
    assert step.values["all"].shape == (4,)


def test_reset_means_starts_new_means() -> None:
    step = new_step()
    assert step.means() == {}
    step(torch.full((4,), 7.0))
    step.reset_means()
    assert torch.isnan(step.means()["loss"])
    step(torch.full((4,), 1.0))
    assert step.means()["loss"] == 1.0


def test_a_trial_counts_nothing_twice(quick_compiler) -> None:
    step = new_step(tier="compiled")
    for value in range(12):
        step(torch.full((4,), float(value)))
    assert step.tier == "compiled", step.report()
    assert step.means()["loss"] == 5.5


def test_means_of_long_epochs_lose_no_precision() -> None:
    step = new_step(tier="eager")
    step.load_state_dict({**step.state_dict(), "means": [[["loss"], [10**9, 10**9]]]})
    step(torch.ones(1))
    assert step.state_dict()["means"] == [[["loss"], [10**9 + 1, 10**9 + 1]]]


def test_a_name_that_appears_late_counts_once_and_compiles_nothing(quick_compiler) -> None:
    late = [False]

    @torch._dynamo.disable
    def step_fn(model, x):
        return told(model, x), {"a": x.sum(), **({"b": 1.0} if late[0] else {})}

    step = new_step(step_fn, tier="compiled", accumulate=2)
    for value in range(12):
        step(torch.full((4,), float(value)))
    assert step.tier == "compiled", step.report()
    late[0] = True
    for value in (12.0, 13.0):
        step(torch.full((4,), value))
    assert step.tier == "compiled", step.report()
    assert step.means()["loss"] == 6.5


@pytest.mark.slow
def test_the_code_of_the_means_is_compiled_for_any_number_of_steps(quick_compiler) -> None:
    """Each step compiles a copy of the code: torch compiles one code object only eight times."""
    tally = RunningMeans(torch.device("cpu"))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for weight in range(2, 13):
            tally.account = torch.compile(with_own_code(account))
            tally.add(torch.tensor(1.0), {}, weight=weight, opens=True)
    assert tally.means()["loss"] == 1.0


def test_the_host_and_a_device_compute_the_same_sums() -> None:
    source = torch.Generator().manual_seed(0)
    sums = []
    for way in (account, account_on_host):
        source.manual_seed(0)
        tally = RunningMeans(torch.device("cpu"))
        tally.account = way
        flags = []
        for number in range(40):
            loss = torch.randn((), generator=source).to(
                (torch.float32, torch.float64, torch.bfloat16)[number % 3]
            )
            values = {"share": torch.rand(1, generator=source), "right": torch.tensor(number % 2 == 0)}
            loss = loss * torch.inf if number % 7 == 3 else loss * torch.nan if number % 7 == 5 else loss
            tally.add(loss, values, weight=number, opens=number % 2 == 0)
            flags.append(tally.bad.clone())
        sums.append([*tally.totals.values(), *flags])
    assert all(map(torch.equal, *sums))
