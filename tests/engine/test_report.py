"""Events carry a machine-readable cause next to their reason."""

from __future__ import annotations

import json

import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.report import Cause, Journal, StepReport
from flodl.optim import CosineScheduler, PlateauScheduler, WarmupScheduler


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(step_fn=mse, **settings) -> TrainStep:
    model = nn.Linear(4, 2)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def causes(step: TrainStep) -> list[Cause]:
    return [event.cause for event in step.report().events]


def test_a_dropped_batch_has_the_cause_of_a_ragged_batch() -> None:
    step = new_step(tail="drop", tier="eager")
    step(torch.ones(8, 4), torch.zeros(8, 2))
    step(torch.ones(3, 4), torch.zeros(3, 2))
    assert causes(step) == [Cause.RAGGED_BATCH]


def test_an_ambiguous_number_of_samples_is_a_cause() -> None:
    step = new_step(lambda m, x, y: m(x).mean() + y.mean(), tier="eager")
    step(torch.ones(8, 4), torch.zeros(3))
    assert causes(step) == [Cause.SAMPLE_COUNT]


def test_a_split_batch_has_the_cause_of_missing_memory() -> None:
    def hungry(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            raise torch.OutOfMemoryError("a small device")
        return mse(model, x, y)

    step = new_step(hungry, tier="eager")
    step(torch.ones(8, 4), torch.zeros(8, 2))
    assert causes(step) == [Cause.OUT_OF_MEMORY]


def test_only_events_about_a_tier_are_about_the_tier() -> None:
    journal = Journal()
    journal.add(1, "captured", Cause.PROMOTED, "equal to eager")
    journal.add(1, "eager", Cause.RAGGED_BATCH, "a ragged last batch runs eagerly")
    journal.add(1, "tune", Cause.TUNING_LIMIT, "no time is left")
    journal.add(1, "dropped", Cause.RAGGED_BATCH, "a ragged last batch was dropped")
    journal.add(1, "samples", Cause.SAMPLE_COUNT, "it counts as 6 samples")
    journal.add(1, "schedule", Cause.PROBABLE_MISTAKE, "the rate is 0")
    assert [event.is_about_tier for event in journal.events] == [True] * 3 + [False] * 3
    assert [event.is_about_batches for event in journal.events] == [False] * 3 + [True, True, False]


def test_causes_are_plain_strings_in_json() -> None:
    step = new_step(tail="drop", tier="eager")
    step(torch.ones(8, 4), torch.zeros(8, 2))
    step(torch.ones(3, 4), torch.zeros(3, 2))
    (event,) = json.loads(json.dumps(step.report().to_dict()))["events"]
    assert event["cause"] == "ragged_batch"


def test_an_event_is_recorded_again_only_if_it_repeats() -> None:
    journal = Journal()
    for repeat in (False, False, True):
        journal.add(1, "eager", Cause.SLOWER, "measured slower", repeat=repeat)
    assert len(journal.events) == 2


def test_updates_include_skipped_ones_everywhere() -> None:
    step = new_step(tier="eager", schedule=lambda update: 0.1)
    for factor in (1.0, torch.nan, torch.inf, 1.0):
        step(torch.ones(8, 4) * factor, torch.zeros(8, 2))
    report = step.report()
    assert (report.steps, report.updates, report.skipped, report.applied) == (4, 4, 2, 2)
    assert report.to_dict()["applied"] == 2
    assert (step.updates, step.state_dict()["updates"], step.schedule.current_step) == (4, 4, 4)
    assert "steps     4 (4 updates, 2 of them skipped as not finite)" in str(report)
    resumed = new_step(tier="eager", schedule=lambda update: 0.1)
    resumed.load_state_dict(json.loads(json.dumps(step.state_dict())))
    assert (resumed.updates, resumed.report().updates, resumed.report().applied) == (4, 4, 2)


def test_micro_batches_that_wait_for_a_full_window_are_reported() -> None:
    step = new_step(tier="eager", accumulate=4)
    for _ in range(6):
        step(torch.ones(8, 4), torch.zeros(8, 2))
    report = step.report()
    assert (report.updates, report.pending, report.to_dict()["pending"]) == (1, 2, 2)
    assert "pending   2 micro-batches wait for a full window; step.flush() applies them" in str(report)
    step.flush()
    assert step.report().pending == 0
    assert "pending" not in str(step.report())


def test_an_epoch_that_ends_within_a_window_is_an_event() -> None:
    step = new_step(tier="eager", accumulate=2)
    for number in range(1, 5):
        step(torch.ones(8, 4), torch.zeros(8, 2))
        if number % 2 == 0:
            step.reset_means()
    assert causes(step) == []
    step(torch.ones(8, 4), torch.zeros(8, 2))
    step.reset_means()
    assert causes(step) == [Cause.OPEN_WINDOW]
    assert "after 1 of 2 micro-batches" in step.report().events[0].reason


def test_every_dropped_batch_is_counted_also_after_a_resume() -> None:
    step = new_step(tail="drop", tier="eager")
    for _ in range(3):
        step(torch.ones(8, 4), torch.zeros(8, 2))
        step(torch.ones(3, 4), torch.zeros(3, 2))
    assert (step.report().dropped, step.report().steps) == (3, 3)
    assert "dropped   3 ragged batches" in str(step.report())
    resumed = new_step(tail="drop", tier="eager")
    resumed.load_state_dict(json.loads(json.dumps(step.state_dict())))
    assert resumed.report().dropped == 3


def test_the_report_says_how_high_the_rates_of_a_function_were_if_they_exceed_that_of_the_optimizer() -> None:
    def told(schedule):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), schedule=schedule, tier="eager")
        for _ in range(4):
            step(torch.ones(3, 4))
        return step.report().schedule

    assert told(lambda step: 1e-3 * (step + 1)) == (
        "the function has set learning rates up to 0.005; the lr=0.0003 of the AdamW is not used"
    )
    assert told(lambda step: 3e-4 * 0.9**step) == ""


def test_a_plateau_schedule_that_has_observed_nothing_is_named_in_the_report() -> None:
    def told(schedule, *metrics):
        step = new_step(schedule=schedule)
        assert not step.report().schedule
        step(torch.ones(8, 4), torch.zeros(8, 2))
        for metric in metrics:
            step.schedule.observe(metric)
        return str(step.report())

    line = "schedule  PlateauScheduler has not observed a metric yet"
    plateau = PlateauScheduler(0.1, patience=2, factor=0.5)
    assert line in told(plateau)
    assert line in told(WarmupScheduler(plateau, 0.1, 3))
    assert line not in told(plateau, 1.0)
    assert line not in told(PlateauScheduler(0.1, patience=2, factor=0.5), float("nan"))
    assert "schedule" not in told(CosineScheduler(0.1, 0.0, 10))
    assert "schedule" not in told(lambda step: 0.1)


def test_one_of_a_kind_is_not_in_the_plural():
    shown = str(
        StepReport(tier="eager", reason="", steps=1, updates=1, captures=1, promotion_cost_s=1.0, dropped=1)
    )
    assert "1 (1 update)" in shown
    assert "1 recording" in shown
    assert "1 ragged batch," in shown
    assert "2 (2 updates)" in str(StepReport(tier="eager", reason="", steps=2, updates=2))
