"""A window closes when a quorum arrived and the grace period is over."""

import json
import math

import pytest

from flodl.distributed.coordination import Meeting, MeetingSettings


def meeting_of(num, **settings):
    meeting = Meeting(MeetingSettings(**settings))
    for rank in range(num):
        meeting.expect(rank, base=0)
    return meeting


def arrive(meeting, rank, now, base=0, weight=10):
    meeting.arrive(rank, base=base, weight=weight, now_ms=now)
    return meeting.closes(now, window_ms=100.0)


def test_a_full_barrier_waits_for_everyone():
    meeting = meeting_of(3)
    assert arrive(meeting, 0, 90.0) == math.inf
    assert arrive(meeting, 1, 91.0) == math.inf
    assert arrive(meeting, 2, 500.0) == 500.0
    roll = meeting.close()
    assert (roll.members, roll.weights, roll.late) == ((0, 1, 2), (10, 10, 10), ())
    assert roll.reason == "all 3 ranks arrived"


def test_a_rank_that_is_lost_is_not_waited_for():
    meeting = meeting_of(2)
    arrive(meeting, 0, 90.0)
    meeting.drop(1)
    assert meeting.closes(95.0, window_ms=100.0) == 95.0


def test_the_quorum_counts_ranks_at_work_and_the_grace_period_starts_with_it():
    meeting = meeting_of(4, quorum=0.75, max_grace=0.2)
    assert arrive(meeting, 0, 80.0) == math.inf
    assert arrive(meeting, 1, 90.0) == math.inf
    assert arrive(meeting, 2, 100.0) == 120.0
    assert arrive(meeting, 3, 110.0) == 110.0, "everyone is here"


@pytest.mark.parametrize(("num", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (8, 5), (1000, 600)])
def test_a_quorum_of_60_percent_needs_both_of_two_ranks_and_two_of_three(num, needed):
    meeting = meeting_of(num, quorum=0.6)
    closings = [arrive(meeting, rank, 90.0) for rank in range(needed)]
    assert all(math.isinf(each) for each in closings[:-1])
    assert closings[-1] < math.inf


def test_the_grace_period_adapts_to_how_late_ranks_are():
    meeting = meeting_of(4, quorum=0.5, max_grace=0.2)
    graces = []
    for version in range(1, 60):
        start = version * 100.0
        arrive(meeting, 0, start, base=version - 1)
        graces.append(arrive(meeting, 1, start, base=version - 1) - start)
        arrive(meeting, 2, start + 2.0, base=version - 1)
        arrive(meeting, 3, start + 2.0, base=version - 1)
        meeting.close()
        meeting.advance(version, members=[0, 1, 2, 3])
        for rank in range(4):
            meeting.expect(rank, base=version)
    assert graces[0] == 20.0
    assert graces[-1] == pytest.approx(4.0, abs=0.5)


def test_the_grace_period_is_never_so_short_that_a_little_jitter_excludes_a_rank():
    meeting = meeting_of(3, quorum=0.6, max_grace=0.1)
    for version in range(1, 30):
        start = version * 100.0
        arrive(meeting, 0, start, base=version - 1)
        grace = arrive(meeting, 1, start, base=version - 1) - start
        arrive(meeting, 2, start, base=version - 1)
        meeting.close()
        meeting.advance(version, members=[0, 1, 2])
        for rank in range(3):
            meeting.expect(rank, base=version)
    assert grace == 2.0


def test_a_rank_that_never_comes_does_not_lengthen_the_grace_period():
    meeting = meeting_of(3, quorum=0.6, max_grace=0.1)
    arrive(meeting, 0, 100.0)
    assert arrive(meeting, 1, 100.0) == 110.0
    meeting.close()
    meeting.advance(0, members=[0, 1])
    meeting.expect(0, base=0)
    meeting.expect(1, base=0)
    meeting.arrive(2, base=0, weight=10, now_ms=900.0)
    arrive(meeting, 0, 1000.0)
    assert meeting.closes(1000.0, window_ms=100.0) == 1010.0


def test_a_late_rank_enters_the_next_window_with_its_own_weight_and_base():
    meeting = meeting_of(3, quorum=0.6)
    arrive(meeting, 0, 100.0), arrive(meeting, 1, 100.0)
    assert meeting.close().late == (2,)
    meeting.advance(1, members=[0, 1])
    meeting.expect(0, base=1), meeting.expect(1, base=1)
    arrive(meeting, 2, 150.0, base=0, weight=7)
    arrive(meeting, 0, 200.0, base=1), arrive(meeting, 1, 200.0, base=1)
    roll = meeting.close()
    assert (roll.members, roll.weights, roll.bases) == ((0, 1, 2), (10, 10, 7), (1, 1, 0))


def test_a_window_without_a_holder_of_the_current_version_does_not_close():
    meeting = meeting_of(2, quorum=0.5)
    arrive(meeting, 0, 100.0)
    meeting.close()
    meeting.advance(1, members=[0])
    meeting.expect(0, base=1)
    assert arrive(meeting, 1, 150.0, base=0) == math.inf
    assert arrive(meeting, 0, 200.0, base=1) == 200.0


def test_a_rank_that_runs_ahead_counts_as_arrived():
    meeting = meeting_of(2)
    arrive(meeting, 0, 50.0)
    meeting.expect(0, base=0)
    assert arrive(meeting, 1, 100.0) == 100.0
    meeting.close()
    meeting.advance(1, members=[0, 1])
    assert meeting.closes(100.0, window_ms=100.0) == math.inf


def test_ranks_whose_base_is_too_old_are_named():
    meeting = meeting_of(2, quorum=0.5, max_staleness=2)
    for version in range(1, 4):
        arrive(meeting, 0, version * 100.0, base=version - 1)
        meeting.close()
        meeting.advance(version, members=[0])
        meeting.expect(0, base=version)
        assert meeting.stale() == ([1] if version > 2 else [])


def test_a_restored_meeting_closes_at_the_same_time():
    meeting = meeting_of(4, quorum=0.75)
    for rank in range(3):
        closes = arrive(meeting, rank, 100.0 + rank)
    again = Meeting(meeting.settings)
    again.restore(json.loads(json.dumps(meeting.state())))
    assert again.closing_ms == closes == again.closes(105.0, window_ms=100.0)
    assert again.close() == meeting.close()
