"""Updates that are skipped because something is not finite are reported, once and without waiting."""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flodl import Trainer
from flodl.core import StepError
from flodl.engine import TrainStep, find_non_finite
from flodl.engine.mistakes import skipped_updates
from flodl.engine.report import Cause, Journal

X, Y = torch.ones(8, 4), torch.zeros(8, 2)


class RootOfZero(nn.Module):
    """Has a finite output and a gradient that is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 0).sqrt()


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(*layers: nn.Module, **settings) -> TrainStep:
    model = nn.Sequential(nn.Linear(4, 2), *layers)
    settings = {"tier": "eager", **settings}
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, **settings)


def events(step: TrainStep) -> list[tuple[int, str]]:
    return [(event.step, event.reason) for event in step.report().events if event.cause is Cause.NOT_FINITE]


def test_a_run_whose_updates_are_all_skipped_says_so_from_the_first_one_on(capsys) -> None:
    step = new_step(RootOfZero())
    for _ in range(300):
        assert step(X, Y).isfinite()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert "TrainStep: the first update was skipped, because the loss or a gradient was not finite" in told[0]
    assert "all 16 updates so far were skipped" in told[1]
    assert "all 256 updates so far were skipped" in told[2]
    assert [step for step, _ in events(step)] == [1, 16, 256]


def test_what_the_warning_suggests_finds_the_cause(capsys) -> None:
    step = new_step(RootOfZero())
    step(X, Y)
    assert bool(step.skipped)
    step(X, Y)
    assert "flodl.engine.find_non_finite(step, (x, y))" in capsys.readouterr().err
    assert find_non_finite(step, (X, Y)).path == "1"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((X, Y), "find_non_finite got TrainStep, Tensor, Tensor by position, and takes only step, batch"),
        ((), "find_non_finite needs 'batch'"),
        ((X,), "find_non_finite got a Tensor as the batch"),
        (({"x": X, "y": Y},), "find_non_finite got a dict as the batch"),
        ((None,), "find_non_finite got a NoneType as the batch"),
    ],
)
def test_a_batch_that_is_not_passed_as_one_tuple_is_an_error_with_the_call(arguments, told) -> None:
    with pytest.raises(StepError, match=r"find_non_finite\(step, \(x, y\)\)") as caught:
        find_non_finite(new_step(), *arguments)
    assert str(caught.value).startswith(told)


def test_a_batch_that_does_not_fit_the_step_function_is_an_error_with_both() -> None:
    with pytest.raises(
        StepError, match=r"the step function mse\(model, x, y\) .* is called with the model and 1"
    ):
        find_non_finite(new_step(), (X,))


def test_the_cause_is_only_found_for_a_step() -> None:
    with pytest.raises(StepError, match=r"got a Linear, expected a TrainStep"):
        find_non_finite(nn.Linear(4, 2), (X, Y))


def test_a_single_skipped_update_is_one_warning_and_one_event(capsys) -> None:
    step = new_step()
    for factor in (1.0, torch.nan, *[1.0] * 600):
        step(X * factor, Y)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "1 of 2 updates was skipped" in told
    assert [step for step, _ in events(step)] == [2]


def test_a_skipped_last_update_is_in_the_report(capsys) -> None:
    step = new_step()
    step(X, Y)
    step(X * torch.nan, Y)
    ((at, reason),) = events(step)
    assert (at, reason.partition(",")[0]) == (2, "1 of 2 updates was skipped")
    assert events(step) == [(at, reason)]
    assert capsys.readouterr().err.count("\n") == 1


def test_updates_that_are_applied_are_not_reported(capsys) -> None:
    step = new_step()
    for _ in range(300):
        step(X, Y)
    assert events(step) == []
    assert capsys.readouterr().err == ""


def test_a_skipped_accumulation_window_counts_as_one_update(capsys) -> None:
    step = new_step(RootOfZero(), accumulate=4)
    for _ in range(6):
        step(X, Y)
    step.flush()
    step(X, Y)
    assert capsys.readouterr().err.count("the first update was skipped") == 1
    assert step.report().skipped == 2


def test_the_search_for_a_loss_scale_is_not_reported(capsys) -> None:
    step = new_step(precision="fp16")
    for number in range(300):
        step(X * (torch.inf if number < 12 or number % 50 == 0 else 1.0), Y)
    assert step.report().skipped >= 12
    assert events(step) == []
    assert capsys.readouterr().err == ""


def test_with_a_loss_scale_only_a_long_row_of_skipped_updates_is_reported(capsys) -> None:
    step = new_step(RootOfZero(), precision="fp16")
    for _ in range(24):
        step(X, Y)
    assert capsys.readouterr().err == ""
    for _ in range(36):
        step(X, Y)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "all 24 updates so far were skipped" in told


def test_a_resumed_step_reports_new_skipped_updates_only(capsys) -> None:
    step = new_step()
    for factor in (1.0, torch.nan, 1.0):
        step(X * factor, Y)
    saved = json.loads(json.dumps(step.state_dict()))
    capsys.readouterr()
    resumed = new_step()
    resumed.load_state_dict(saved)
    for _ in range(3):
        resumed(X, Y)
    assert (resumed.report().skipped, capsys.readouterr().err) == (1, "")
    resumed(X * torch.nan, Y)
    resumed(X, Y)
    assert "2 of 7 updates were skipped" in capsys.readouterr().err


def test_a_copy_of_a_step_continues_to_report(capsys) -> None:
    step = new_step(RootOfZero())
    step(X, Y)
    for copied in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        copied(X, Y)
        assert "the first update was skipped" in capsys.readouterr().err


@pytest.mark.parametrize("tier", ["eager", "compiled"])
def test_skipped_updates_are_reported_on_every_tier(tier, quick_compiler, capsys) -> None:
    step = new_step(tier=tier)
    for _ in range(8):
        step(X, Y)
    assert step.tier == tier
    step(X * torch.nan, Y)
    step(X, Y)
    assert "1 of 9 updates was skipped" in capsys.readouterr().err


class OnCuda(torch.Tensor):
    """A count that pretends to be on a device."""

    is_cuda = True


def test_on_a_device_a_check_reads_what_the_check_before_has_copied(monkeypatch, capsys) -> None:
    is_done = False
    num_copies = 0

    def start_copy(num_skipped: torch.Tensor, updates: int) -> skipped_updates.CountCopy:
        nonlocal num_copies
        num_copies += 1
        event = SimpleNamespace(query=lambda: is_done)
        return skipped_updates.CountCopy(torch.tensor(num_skipped.item()), event, updates)

    monkeypatch.setattr(skipped_updates, "start_copy", start_copy)
    count, journal = torch.zeros(()).as_subclass(OnCuda), Journal()
    skipped = skipped_updates.SkippedUpdates(with_scaler=False)
    skipped.check(count, 0, journal, step=0)
    assert num_copies == 0
    count.fill_(100)
    skipped.check(count, 256, journal, step=256)
    skipped.check(count.fill_(200), 512, journal, step=512)
    assert (num_copies, journal.events) == (1, [])
    is_done = True
    skipped.check(count.fill_(300), 768, journal, step=768)
    assert num_copies == 2
    assert "100 of 256 updates were skipped" in capsys.readouterr().err
    skipped.check(count, 1024, journal, step=1024, wait=True)
    assert [event.step for event in journal.events] == [768]


def test_a_trainer_reports_skipped_updates_itself(capsys) -> None:
    trainer = Trainer(
        nn.Linear(4, 2),
        mse,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        nan="skip",
        monitor=False,
    )
    x = torch.ones(64, 4)
    x[20] = torch.nan
    result = trainer.fit((x, torch.zeros(64, 2)), epochs=1, batch_size=8)
    assert result.skipped == 1
    assert "TrainStep:" not in capsys.readouterr().err
    assert [event.cause for event in result.report.events].count(Cause.NOT_FINITE) == 1
