"""Estimating the remaining time of a run."""

import pytest

from flodl.core.eta import seconds_left


def test_the_estimate_is_recent_durations_times_remaining_epochs():
    assert seconds_left({0: 90.0, 1: 10.0, 2: 10.0}, done=3, total_epochs=10) == 70.0
    assert seconds_left({0: 8.0}, done=9, total_epochs=4) == 0.0


def test_only_the_last_five_epochs_count():
    slow_then_fast = {epoch: 100.0 if epoch < 5 else 1.0 for epoch in range(10)}
    assert seconds_left(slow_then_fast, done=10, total_epochs=20) == 10.0


def test_epochs_that_the_run_has_not_reached_are_those_of_an_earlier_run():
    earlier = dict.fromkeys(range(4), 100.0)
    assert seconds_left({**earlier, 0: 2.0}, done=1, total_epochs=4) == 6.0
    assert seconds_left(earlier, done=0, total_epochs=4) is None
    assert seconds_left(earlier, done=0, total_epochs=4, fraction=0.5, elapsed_s=1.0) == 7.0


def test_one_long_pause_does_not_move_the_estimate():
    assert seconds_left({0: 2.0, 1: 3600.0, 2: 2.0}, done=3, total_epochs=5) == 4.0


def test_within_an_epoch_its_progress_counts():
    assert seconds_left({}, done=0, total_epochs=4, fraction=0.25, elapsed_s=10.0) == 150.0
    assert seconds_left({0: 8.0}, done=1, total_epochs=4, fraction=0.5, elapsed_s=100.0) == 20.0


@pytest.mark.parametrize("elapsed_s", [0.0, 5.0])
def test_nothing_is_known_before_the_first_step(elapsed_s):
    assert seconds_left({}, done=0, total_epochs=4, elapsed_s=elapsed_s) is None
