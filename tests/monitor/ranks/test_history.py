"""The history of ranks: events add up, missing ones are bridged, and damaged ones are harmless."""

import pytest

from flodl.monitor.ranks import RankHistory


def update(number, *, start_s=100.0, num_ranks=2, step_s=1.0):
    """An event in which each rank computed for most of a second and waited for the rest."""
    begin_s = start_s + number * step_s
    end_s = begin_s + step_s
    rows = [
        {
            "rank": rank,
            "device": "cpu",
            "host": "node",
            "state": "running",
            "since_s": end_s,
            "train_s": 0.75 * (number + 1) * step_s,
            "wait_s": 0.25 * (number + 1) * step_s,
            "samples": 10 * (number + 1),
            "batches": number + 1,
            "speed": 100.0 + rank,
        }
        for rank in range(num_ranks)
    ]
    middle_s = begin_s + 0.75 * step_s
    slices = [[begin_s, middle_s, 0.75 * step_s, 0.0, 0.0], [middle_s, end_s, 0.0, 0.0, 0.25 * step_s]]
    return {
        "start_s": start_s,
        "time_s": end_s,
        "number": number,
        "policy": "cadence",
        "totals": {"syncs": number + 1, "samples": 20 * (number + 1), "divergence": 0.5},
        "ranks": rows,
        "slices": {str(rank): slices for rank in range(num_ranks)},
        "pace": {str(rank): [[begin_s, number + 1]] for rank in range(num_ranks)},
        "syncs": [[end_s, 1]],
    }


def test_events_add_up():
    history = RankHistory()
    for number in range(3):
        history.add(update(number))
    found = history.to_dict()
    assert [len(found["slices"][rank]) for rank in ("0", "1")] == [6, 6]
    assert found["pace"]["1"] == [[100.0, 1.0], [101.0, 2.0], [102.0, 3.0]]
    assert found["speed"]["1"] == [[101.0, 101.0], [102.0, 101.0], [103.0, 101.0]]
    assert (found["totals"]["syncs"], len(found["syncs"])) == (3, 3)
    assert [row["samples"] for row in found["ranks"]] == [30, 30]


def test_missing_events_become_one_slice_from_the_totals():
    history = RankHistory()
    for number in (0, 4):
        history.add(update(number))
    assert history.slices[0][2:] == [(101.0, 105.0, 3.0, 0.0, 1.0)]
    assert history.syncs == [(101.0, 1), (105.0, 4)]
    assert history.pace[0] == [(100.0, 1.0), (105.0, 5)]


def test_a_new_start_replaces_the_events_of_the_one_before():
    history = RankHistory()
    for number in range(3):
        history.add(update(number))
    history.add(update(0, start_s=500.0, num_ranks=1))
    assert list(history.rows) == [0]
    assert history.slices[0][0][0] == 500.0


def test_memory_is_bounded_however_long_the_run_is():
    history = RankHistory(max_slices=1000)
    for number in range(3000):
        history.add(update(number))
    found = history.to_dict()
    assert all(len(lane) <= 500 for lane in found["slices"].values())
    assert len(found["syncs"]) <= 2000
    assert max(len(line) for line in (*found["pace"].values(), *found["speed"].values())) <= 1000
    assert sum(each[2] for each in history.slices[0]) == pytest.approx(0.75 * 3000)
    assert sum(count for _, count in history.syncs) == 3000


def test_a_rank_that_joins_later_starts_with_its_own_slices():
    history = RankHistory()
    history.add(update(0, num_ranks=1))
    history.add(update(1, num_ranks=2))
    assert (len(history.slices[0]), len(history.slices[1])) == (4, 2)


@pytest.mark.parametrize(
    "damaged",
    [
        {"ranks": "none"},
        {"ranks": [None, 7, {"rank": "0"}, {"rank": True}]},
        {"ranks": [{"rank": 0, "train_s": "much", "since_s": float("inf"), "device": 7}]},
        {"ranks": [{"rank": 0}], "slices": {"0": [[1, 2], "x", [1, 2, 3, 4, None], [3, 1, 0, 0, 0]]}},
        {"ranks": [{"rank": 0}], "slices": [], "pace": 3, "syncs": {"a": 1}, "totals": [1]},
        {"ranks": [{"rank": 0}], "start_s": "now", "number": None, "totals": {"divergence": "nan"}},
    ],
)
def test_what_is_not_valid_in_an_event_is_left_out(damaged):
    history = RankHistory()
    history.add(damaged)
    history.add(update(0))
    history.add(damaged)
    assert all(
        type(value) is not bool for row in history.to_dict().get("ranks", ()) for value in row.values()
    )


def test_without_events_it_is_empty():
    history = RankHistory()
    assert not history
    assert history.to_dict() == {}
