"""The learning rate follows the committed work of all ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.distributed.coordination import Position


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 1000))
def test_all_ranks_reach_the_same_position_at_the_meeting_for_any_counts(counts, committed):
    ends = [Position(committed, sum(counts) / count).at(count) for count in counts]
    assert ends == [pytest.approx(committed + sum(counts))] * len(counts)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(1.0, 8.0), st.floats(0, 1)), min_size=1))
def test_the_position_never_goes_back_even_if_work_is_lost(windows):
    position, committed, last = Position(0.0, 1.0), 0.0, 0.0
    for steps, per_step, kept in windows:
        for step in range(steps + 1):
            assert position.at(step) >= last
            last = position.at(step)
        committed += steps * position.per_step * kept
        position = position.next(start=committed, per_step=per_step, steps=steps)


def test_lost_work_does_not_move_the_schedule_forward():
    position = Position(0.0, 2.0)
    for _ in range(10):
        # Of 20 batches per window, 10 are lost.
        position = position.next(start=position.start + 10.0, per_step=2.0, steps=10)
    assert position.start == 100.0
    assert position.at(0) == 110.0, "one window ahead at most"
