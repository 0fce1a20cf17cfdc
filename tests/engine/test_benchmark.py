"""Measuring the tiers side by side."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import benchmark as measure


def mse(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def tiny_work():
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), mse, (torch.ones(8, 4), torch.zeros(8, 2))


def test_every_rival_is_measured_in_every_round_and_reports_what_ran() -> None:
    heard: list[str] = []
    torch_loop, eager, captured = measure.compare(
        tiny_work, ["torch", "eager", "captured"], steps=2, rounds=3, say=heard.append
    )
    assert [len(timing.samples_s) for timing in (torch_loop, eager, captured)] == [3, 3, 3]
    assert all(timing.median_s > 0 for timing in (torch_loop, eager, captured))
    assert (torch_loop.ran, torch_loop.report) == ("torch", None)
    assert (eager.ran, eager.reason) == ("eager", "tier='eager' was requested")
    assert eager.report.steps == measure.READY_STEPS + 2 * 3
    assert captured.rival == "captured"
    if not torch.cuda.is_available():
        assert (captured.ran, captured.reason) == ("eager", "the model is on cpu, and capture needs CUDA")
    assert heard[0] == "torch: getting ready"
    assert heard[-1] == "round 3 of 3"


def test_a_timing_becomes_json() -> None:
    (timing,) = measure.compare(tiny_work, ["eager"], steps=1, rounds=1)
    plain = json.loads(json.dumps(timing.to_dict()))
    assert plain["rival"] == plain["ran"] == plain["report"]["tier"] == "eager"
    assert plain["samples_s"] == [plain["median_s"]]
    assert plain["jitter"] == 0


def test_each_rival_has_its_own_model_from_the_same_seed() -> None:
    made = []

    def make():
        made.append(tiny_work())
        return made[-1]

    first = []

    def remembering():
        work = make()
        first.append(work[0].weight.detach().clone())
        return work

    measure.compare(remembering, ["torch", "eager"], steps=1, rounds=1)
    assert made[0][0] is not made[1][0]
    assert torch.equal(first[0], first[1])
    assert torch.allclose(made[0][0].weight, made[1][0].weight)


def test_jitter_is_the_scaled_deviation_over_the_median() -> None:
    timing = measure.Timing("eager", "eager", "", 0.0, (1.0, 2.0, 4.0))
    assert (timing.median_s, timing.jitter) == (2.0, 1.4826 * 1.0 / 2.0)


def test_the_batch_may_be_one_tensor_and_the_step_may_return_named_values() -> None:
    def make():
        model = nn.Linear(4, 2)
        loss_of = lambda m, x: (m(x).square().mean(), {"first": x[0, 0]})  # noqa: E731
        return model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, torch.ones(8, 4)

    assert len(measure.compare(make, ["torch", "eager"], steps=1, rounds=1)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: 3, "the function returns an int. Return (model, optimizer, step_fn, batch)."),
        (lambda: (1, 2), "the function returns 2 values. Return (model, optimizer, step_fn, batch)."),
        (lambda: (mse, *tiny_work()[1:]), "the model is a function."),
    ],
)
def test_an_invalid_workload_is_refused(given, message: str) -> None:
    with pytest.raises(StepError) as error:
        measure.compare(given, ["eager"])
    assert message in str(error.value)


def test_an_unknown_tier_is_refused_with_a_suggestion() -> None:
    with pytest.raises(StepError, match=r"there is no tier 'compield'. Did you mean 'compiled'\?"):
        measure.compare(tiny_work, ["compield"])


def test_the_workload_is_moved_to_the_requested_device() -> None:
    model, _, _, batch = measure.check_work(tiny_work(), "cpu")
    assert model.weight.device == batch[0].device == torch.device("cpu")


def test_there_is_a_default_workload() -> None:
    model, _, step_fn, batch = measure.small_work("cpu")
    assert step_fn(model, *batch).shape == ()
