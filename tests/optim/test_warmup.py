import pytest
import torch

from flodl.core import ScheduleError
from flodl.optim import CosineScheduler, PlateauScheduler, WarmupScheduler

COSINE = CosineScheduler(0.1, 0.001, 90)


def test_the_warm_up_ends_at_the_target_and_the_inner_schedule_starts_at_its_step_zero():
    schedule = WarmupScheduler(COSINE, 0.1, 10)
    assert [schedule.lr(step) for step in (0, 4, 9)] == pytest.approx([0.01, 0.05, 0.1])
    assert [schedule.lr(step) for step in (10, 55, 100)] == [COSINE.lr(step) for step in (0, 45, 90)]


def test_no_warm_up_is_the_inner_schedule_itself():
    assert [WarmupScheduler(COSINE, 0.1, 0).lr(step) for step in range(5)] == [
        COSINE.lr(step) for step in range(5)
    ]


def test_warm_ups_can_be_nested():
    schedule = WarmupScheduler(WarmupScheduler(COSINE, 0.1, 5), 0.02, 2)
    assert [schedule.lr(step) for step in (0, 1, 2, 6, 7)] == pytest.approx([0.01, 0.02, 0.02, 0.1, 0.1])


def test_a_plateau_can_follow_a_warm_up_on_the_host_but_not_on_the_device():
    schedule = WarmupScheduler(PlateauScheduler(0.1, 1, 0.5), 0.1, 2)
    assert schedule.lr(7) == 0.1
    message = (
        r"inner PlateauScheduler has no lr_tensor\(step\), so it cannot be computed on a device\. Use lr"
    )
    with pytest.raises(ScheduleError, match=message):
        schedule.lr_tensor(torch.tensor(0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: WarmupScheduler(0.1, 0.1, 10),
            r"WarmupScheduler: inner=0\.1 has no method lr\(step\)\. Pass the",
        ),
        (
            lambda: WarmupScheduler(CosineScheduler, 0.1, 10),
            r"WarmupScheduler: inner=<class .* has no method",
        ),
        (
            lambda: WarmupScheduler(COSINE, 0.0, 10),
            r"WarmupScheduler: target=0\.0, expected a finite number abov",
        ),
        (
            lambda: WarmupScheduler(COSINE, 0.1, -1),
            r"WarmupScheduler: warm=-1, expected .* at least 0\. It is the number",
        ),
    ],
)
def test_settings_out_of_range_are_rejected_at_construction(build, message):
    with pytest.raises(ScheduleError, match=message):
        build()
