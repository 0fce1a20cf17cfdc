import json

import pytest
import torch

from flodl.core import ScheduleError
from flodl.optim import PlateauScheduler


def test_the_rate_decays_when_the_patience_is_reached():
    schedule = PlateauScheduler(0.1, 3, 0.5)
    rates = []
    for loss in (1.0, 1.1, 1.2, 1.3):
        schedule.observe(loss)
        rates.append(schedule.lr())
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05])


def test_the_step_is_accepted_and_not_used():
    schedule = PlateauScheduler(0.1, 3, 0.5)
    assert schedule.lr() == schedule.lr(0) == schedule.lr(10_000) == 0.1


def test_an_improvement_starts_the_count_again():
    schedule = PlateauScheduler(0.1, 2, 0.5)
    for loss in (1.0, 1.1, 0.9, 1.0):
        schedule.observe(loss)
    assert schedule.lr() == 0.1
    assert schedule.observe(1.0) == pytest.approx(0.05)


def test_neither_an_equal_value_nor_nan_is_an_improvement():
    schedule = PlateauScheduler(0.1, 2, 0.5)
    for loss in (1.0, 1.0, float("nan")):
        schedule.observe(loss)
    assert schedule.lr() == pytest.approx(0.05)


def test_the_rate_stops_at_the_minimum():
    schedule = PlateauScheduler(0.1, 1, 0.1, 0.005)
    for _ in range(5):
        schedule.observe(1.0)
    assert schedule.lr() == 0.005


def test_higher_can_be_better():
    schedule = PlateauScheduler(0.1, 1, 0.5, mode="max")
    assert [schedule.observe(accuracy) for accuracy in (0.5, 0.6, 0.55)] == pytest.approx([0.1, 0.1, 0.05])


def test_a_metric_may_be_a_tensor():
    schedule = PlateauScheduler(0.1, 1, 0.5)
    schedule.observe(torch.tensor(1.0))
    assert schedule.observe(torch.tensor(2.0)) == pytest.approx(0.05)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seen", [[], [1.0], [1.0, 1.0, 1.0]])
def test_a_saved_plateau_continues_as_if_never_stopped(mode, seen):
    straight, saved = (PlateauScheduler(0.1, 2, 0.5, mode=mode) for _ in range(2))
    for metric in seen:
        straight.observe(metric)
        saved.observe(metric)
    resumed = PlateauScheduler(0.1, 2, 0.5, mode=mode)
    resumed.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    later = [1.5, 0.5, 1.0, 2.0, 1.0, 1.0]
    assert [resumed.observe(metric) for metric in later] == [straight.observe(metric) for metric in later]


def test_the_decays_so_far_apply_to_another_base_and_stop_at_the_minimum():
    saved = PlateauScheduler(0.1, 1, 0.5)
    for _ in range(3):
        saved.observe(1.0)
    for other, rate in (
        (PlateauScheduler(0.4, 1, 0.5), 0.1),
        (PlateauScheduler(0.1, 1, 0.5, 0.05), 0.05),
    ):
        other.load_state_dict(saved.state_dict())
        assert other.lr() == pytest.approx(rate)


def test_the_best_value_of_another_mode_is_forgotten(capsys):
    saved = PlateauScheduler(0.1, 1, 0.5)
    saved.observe(1.0)
    other = PlateauScheduler(0.1, 1, 0.5, mode="max")
    other.load_state_dict(saved.state_dict())
    assert other.observe(0.5) == 0.1
    assert "mode is now 'max', so the best value so far is forgotten" in "".join(capsys.readouterr())


def test_a_state_of_something_else_is_rejected():
    with pytest.raises(
        ScheduleError, match=r"the state has no 'best', 'wait', only \['lr'\]\. Load the result of Plateau"
    ):
        PlateauScheduler(0.1, 2, 0.5).load_state_dict({"lr": 0.1})


def test_the_repr_shows_settings_and_rate():
    expected = "PlateauScheduler(0.1, patience=2, factor=0.5, min=0.0, mode='min', lr=0.1)"
    assert repr(PlateauScheduler(0.1, 2, 0.5)) == expected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: PlateauScheduler(0, 3, 0.5),
            r"PlateauScheduler: base=0, expected a finite number above 0\. Pass",
        ),
        (
            lambda: PlateauScheduler(0.1, 0, 0.5),
            r"PlateauScheduler: patience=0, expected .* at least 1\. .* 1 decays",
        ),
        (
            lambda: PlateauScheduler(0.1, 3, 1.0),
            r"PlateauScheduler: factor=1\.0, expected .* above 0 and below 1\.",
        ),
        (
            lambda: PlateauScheduler(0.1, 3, 0.5, 0.2),
            r"PlateauScheduler: min=0\.2, .* at most 0\.1\. Pass the lowest lea",
        ),
        (
            lambda: PlateauScheduler(0.1, 3, 0.5, mode="up"),
            r"mode='up', expected 'min' or 'max'\. Use 'min' for",
        ),
    ],
)
def test_settings_out_of_range_are_rejected_at_construction(build, message):
    with pytest.raises(ScheduleError, match=message):
        build()


def test_a_metric_that_only_rises_until_the_first_decay_is_mentioned_once(capsys):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5)
    for accuracy in (0.5, 0.6, 0.7, 0.8, 0.9):
        schedule.observe(accuracy)
    assert capsys.readouterr().out.count("0.5, and is 0.7 now. Lower is better") == 1


@pytest.mark.parametrize("values", [(1.0, 0.5, 0.6, 0.7), (0.5, 0.5, 0.5), (500.0, 600.0, 700.0)])
def test_a_loss_that_has_fallen_or_exceeds_an_accuracy_is_not_mentioned(values, capsys):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5)
    for value in values:
        schedule.observe(value)
    assert schedule.lr() == 0.05
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_a_difference_that_is_only_rounding_does_not_count(mode, sign):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5, mode=mode)
    values = [0.8 - sign * 1e-9 * epoch for epoch in range(3)]
    assert [schedule.observe(value) for value in values] == [0.1, 0.1, 0.05]


@pytest.mark.parametrize("metric", ["x", "1.0", None, torch.ones(3), [1.0]])
def test_a_metric_that_is_not_one_number_raises(metric):
    schedule = PlateauScheduler(0.1, 3, 0.5)
    with pytest.raises(ScheduleError, match="Pass one number: the value of the metric in this epoch"):
        schedule.observe(metric)
    assert schedule.observe(torch.tensor([1.0])) == 0.1
