"""Counts follow the measured speeds, and the anchor follows the cost of reducing."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core import DistributedError
from flodl.distributed.cadence import CadenceSettings, ElChe, Verdict, make_guard

STABLE, SUPPRESS = Verdict("stable", ""), Verdict("suppress", "it diverges")


def train(elche, ms, *, windows=1, reduce_ms=0.0, verdict=STABLE, **kwargs):
    """Run windows in which every rank trains its count at its speed."""
    for _ in range(windows):
        for rank, each in ms.items():
            steps = elche.counts[rank]
            elche.report(rank, steps=steps, compute_ms=steps * each)
        cadence = elche.retune(reduce_ms=reduce_ms, verdict=verdict, **kwargs)
    return cadence


def test_all_ranks_arrive_at_the_same_time():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1, 2])
    assert elche.counts == {0: 10, 1: 10, 2: 10}
    cadence = train(elche, {0: 10.0, 1: 20.0, 2: 80.0})
    assert cadence.counts == {0: 80, 1: 40, 2: 10}
    assert cadence.window_ms == 800.0
    assert elche.pace_setters() == [2]


def test_the_time_per_batch_is_divided_by_the_batches_really_trained_not_by_those_planned():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    elche.report(0, steps=30, compute_ms=300.0)  # planned 10, ran ahead
    elche.report(1, steps=10, compute_ms=200.0)
    assert elche.retune(reduce_ms=0.0).counts == {0: 20, 1: 10}


def test_all_ranks_use_the_same_cost_scale_or_none_does():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    # Rank 0 computes twice as fast; measured with its data, it would look slower than rank 1 without.
    elche.report(0, steps=10, compute_ms=100.0, delivered_ms=500.0)
    elche.report(1, steps=10, compute_ms=200.0)
    assert elche.retune(reduce_ms=0.0).counts == {0: 20, 1: 10}
    other = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    other.report(0, steps=10, compute_ms=100.0, delivered_ms=400.0)
    other.report(1, steps=10, compute_ms=200.0, delivered_ms=200.0)
    assert other.retune(reduce_ms=0.0).counts == {0: 10, 1: 20}


def test_waiting_never_lengthens_windows_only_reducing_does():
    elche = ElChe(ranks=[0, 1])
    assert train(elche, {0: 1.0, 1: 50.0}, windows=20, reduce_ms=0.0).anchor == 10
    assert train(elche, {0: 1.0, 1: 50.0}, windows=1, reduce_ms=500.0).anchor == 20


def test_the_anchor_grows_at_most_twofold_and_says_why():
    elche = ElChe(ranks=[0, 1])
    cadence = train(elche, {0: 10.0, 1: 20.0}, windows=2, reduce_ms=1e6)
    assert cadence.anchor == 20
    assert cadence.reasons == (
        "the anchor grows from 10 to 20: reducing takes 100.0% of a window (target 5.0%)",
    )
    assert train(elche, {0: 10.0, 1: 20.0}, windows=50, reduce_ms=1e6).anchor == 1000


def test_the_anchor_stops_where_reducing_costs_its_target_share():
    elche = ElChe(ranks=[0, 1])
    cadence = train(elche, {0: 10.0, 1: 20.0}, windows=60, reduce_ms=100.0)
    assert 100.0 / (cadence.window_ms + 100.0) == pytest.approx(0.05, abs=0.01)


def test_windows_are_longer_while_the_replicas_hardly_diverge():
    elche = ElChe(ranks=[0, 1])
    calm = Verdict("stable", "", calm=True)
    cadence = train(elche, {0: 10.0, 1: 20.0}, windows=60, reduce_ms=100.0, verdict=calm)
    assert 100.0 / (cadence.window_ms + 100.0) == pytest.approx(0.02, abs=0.004)
    # They stay as they are when the divergence rises.
    assert train(elche, {0: 10.0, 1: 20.0}, windows=10, reduce_ms=100.0).anchor == cadence.anchor


@pytest.mark.parametrize("per_batch", [1e-5, 1e-4, 4e-4, 1e-3])
def test_longer_windows_never_reach_the_threshold_of_the_guard(per_batch):
    threshold, found = 0.05, {}
    for allowed in (False, True):
        elche, guard = ElChe(ranks=[0, 1]), make_guard("level")
        for _ in range(60):
            # The divergence grows with the window.
            divergence = per_batch * elche.anchor
            verdict = guard.observe(divergence, steps=elche.anchor)
            verdict = replace(verdict, calm=verdict.calm and allowed)
            train(elche, {0: 10.0, 1: 20.0}, reduce_ms=100.0, verdict=verdict)
        found[allowed] = elche.anchor
    assert found[True] == found[False] or per_batch * found[True] <= threshold


def test_growth_is_committed_by_a_stable_verdict_only_and_latched_off_until_five_in_a_row():
    elche = ElChe(ranks=[0, 1])
    ms = {0: 10.0, 1: 20.0}
    train(elche, ms, windows=5)
    assert train(elche, ms, reduce_ms=1e4, verdict=SUPPRESS).anchor == 10
    assert train(elche, ms, windows=4, reduce_ms=1e4).anchor == 10
    assert train(elche, ms, windows=1, reduce_ms=1e4).anchor == 20


def test_windows_without_a_measured_divergence_do_not_grow_without_bound():
    elche = ElChe(ranks=[0, 1])
    for name in ("level", "growth"):
        verdict = make_guard(name).observe(None, steps=10)
        assert train(elche, {0: 10.0, 1: 20.0}, windows=50, reduce_ms=1e4, verdict=verdict).anchor == 10


def test_only_the_guard_shrinks_windows_and_a_nan_factor_is_ignored():
    elche = ElChe(ranks=[0, 1])
    ms = {0: 10.0, 1: 20.0}
    nudge = Verdict("nudge", "the divergence grows", 0.5)
    assert train(elche, ms, windows=30, reduce_ms=1e-9).anchor == 10
    cadence = train(elche, ms, verdict=nudge)
    assert (cadence.anchor, cadence.counts) == (5, {0: 10, 1: 5})
    assert cadence.reasons == ("the anchor shrinks from 10 to 5: the divergence grows",)
    assert train(elche, ms, verdict=Verdict("nudge", "", math.nan)).anchor == 5
    assert train(elche, ms, verdict=Verdict("nudge", "", 7.0)).anchor == 5
    assert train(elche, ms, windows=20, verdict=nudge).anchor == 1


def test_jitter_within_the_dead_zone_changes_nothing():
    elche = ElChe(CadenceSettings(anchor=100), ranks=[0, 1])
    before = train(elche, {0: 10.0, 1: 20.0}).counts
    for jitter in (1.02, 0.98, 1.03, 0.97):
        assert train(elche, {0: 10.0 * jitter, 1: 20.0}).counts == before


def test_a_throttled_rank_is_followed_within_two_windows_and_back():
    elche = ElChe(ranks=[0, 1])
    train(elche, {0: 10.0, 1: 20.0}, windows=8)
    assert train(elche, {0: 40.0, 1: 20.0}, windows=2).counts == {0: 10, 1: 20}
    assert train(elche, {0: 10.0, 1: 20.0}, windows=2).counts == {0: 20, 1: 10}


def test_a_single_slow_report_is_averaged_over_five():
    elche = ElChe(CadenceSettings(anchor=100), ranks=[0, 1])
    train(elche, {0: 10.0, 1: 20.0}, windows=8)
    train(elche, {0: 20.0, 1: 20.0})
    assert elche.ms[0] == pytest.approx(12.0)
    train(elche, {0: 10.0, 1: 20.0}, windows=4)
    # Its 200 batches count for more than the fewer ones of the windows after it.
    assert elche.ms[0] == pytest.approx(12.3, abs=0.1)
    train(elche, {0: 10.0, 1: 20.0})
    assert elche.ms[0] == pytest.approx(10.0)


def test_in_growing_windows_the_speed_of_the_longest_counts_for_most():
    """A rank is slower once others on the same device do not wait any more, as the windows grow."""
    elche = ElChe(ranks=[0])
    for steps, ms in ((10, 84.5), (10, 85.4), (20, 99.5), (40, 102.0), (80, 102.9)):
        elche.report(0, steps=steps, compute_ms=steps * ms)
    assert elche.ms[0] == pytest.approx(100.0, abs=0.1)


def test_speeds_saved_without_numbers_of_batches_are_read():
    elche = ElChe(ranks=[0])
    elche.report(0, steps=10, compute_ms=100.0)
    state = elche.state()
    state["speeds"]["reports"] = [[0, [[10.0, 0.0], [20.0, 0.0]]]]
    elche.restore(state)
    assert elche.ms[0] == pytest.approx(15.0)


def test_a_rank_that_is_hardly_slower_does_not_take_over_the_pace():
    elche = ElChe(CadenceSettings(anchor=100), ranks=[0, 1])
    train(elche, {0: 20.0, 1: 19.0}, windows=6)
    train(elche, {0: 20.0, 1: 21.0}, windows=6)
    assert elche.counts[0] == 100
    train(elche, {0: 20.0, 1: 23.0}, windows=6)
    assert elche.counts[1] == 100
    assert sorted(elche.pace_setters()) == [0, 1]


def test_a_speed_is_forgotten_after_five_missed_reports():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    train(elche, {0: 10.0, 1: 20.0})
    cadence = train(elche, {0: 10.0}, windows=4)
    assert cadence.counts == {0: 20, 1: 10}
    cadence = train(elche, {0: 10.0})
    assert cadence.reasons == ("the speed of rank 1 is unknown: it missed its last reports",)
    assert cadence.counts[0] == 10


def test_the_counts_of_a_window_fit_into_the_epoch():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    cadence = train(elche, {0: 10.0, 1: 20.0}, batches_left=7)
    assert cadence.counts == {0: 5, 1: 2}
    assert train(elche, {0: 10.0, 1: 20.0}, reduce_ms=1e5, batches_left=1000).anchor == 10, "capped"
    assert elche.counts == {0: 20, 1: 10}


def test_a_rank_never_trains_more_batches_than_its_limit():
    elche = ElChe(CadenceSettings(anchor=10, max_batches={0: 15}), ranks=[0, 1, 2])
    cadence = train(elche, {0: 10.0, 1: 20.0, 2: 20.0}, windows=10, reduce_ms=1e4)
    assert cadence.counts == {0: 15, 1: 10, 2: 10}


def test_a_hopelessly_slow_rank_rests_and_the_reason_says_so():
    elche = ElChe(CadenceSettings(anchor=1), ranks=[0, 1, 2])
    cadence = train(elche, {0: 10.0, 1: 10.0, 2: 5000.0})
    assert cadence.counts == {0: 1, 1: 1, 2: 0}
    assert cadence.resting == {2}
    assert cadence.reasons == (
        "rank 2 rests: with its 5e+03 ms per batch, a window takes 5000 ms; "
        "the other ranks alone train the same batches in 650 ms",
    )
    reasons = [train(elche, {0: 10.0, 1: 10.0}).reasons for _ in range(64)]
    assert ("rank 2 trains again, to measure its speed",) in reasons
    assert elche.counts[2] >= 1


def test_a_rank_gets_none_of_the_last_batches_if_the_others_finish_first():
    elche = ElChe(CadenceSettings(anchor=1), ranks=[0, 1, 2])
    cadence = train(elche, {0: 10.0, 1: 10.0, 2: 300.0}, batches_left=8)
    assert cadence.counts == {0: 4, 1: 4, 2: 0}
    assert "rank 2 gets none of the last 8 batches: one takes 300 ms" in cadence.reasons[0]
    assert train(elche, {0: 10.0, 1: 10.0}, batches_left=1000).counts == {0: 30, 1: 30, 2: 1}


def test_a_rank_that_joins_starts_with_the_count_of_the_slowest():
    elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    train(elche, {0: 10.0, 1: 20.0})
    elche.join(2)
    assert elche.counts[2] == 10
    with pytest.raises(DistributedError, match="rank 2 is already in the cadence"):
        elche.join(2)
    elche.leave(1)
    assert train(elche, {0: 10.0, 2: 10.0}).counts == {0: 10, 2: 10}


def test_useless_reports_are_ignored():
    elche = ElChe(ranks=[0, 1])
    elche.report(0, steps=0, compute_ms=10.0)
    elche.report(0, steps=1, compute_ms=math.nan)
    elche.report(1, steps=1, compute_ms=math.inf)
    elche.report(7, steps=1, compute_ms=1.0)
    assert elche.retune(reduce_ms=1.0).counts == {0: 10, 1: 10}
    assert elche.ms == {}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.1, 1e4), min_size=2, max_size=6),
    st.integers(1, 40),
    st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from(["stable", "suppress", "nudge"])), max_size=12),
    st.integers(1, 500),
)
def test_counts_stay_within_all_limits_and_survive_saving(speeds, anchor, windows, left):
    ranks = range(len(speeds))
    elche = ElChe(CadenceSettings(anchor=anchor, max_anchor=64), ranks=list(ranks))
    twin = ElChe(CadenceSettings(anchor=anchor, max_anchor=64))
    for reduce_ms, kind in windows:
        for rank in ranks:
            steps = max(elche.counts[rank], 1)
            elche.report(rank, steps=steps, compute_ms=steps * speeds[rank])
        twin.restore(json.loads(json.dumps(elche.state())))
        verdict = Verdict(kind, "", 0.5)
        cadence = elche.retune(reduce_ms=reduce_ms, verdict=verdict, batches_left=left)
        assert twin.retune(reduce_ms=reduce_ms, verdict=verdict, batches_left=left) == cadence
        assert sum(cadence.counts.values()) <= left
        assert any(cadence.counts.values())
        assert all(0 <= count <= 64 * 64 for count in cadence.counts.values())
        assert 1 <= cadence.anchor <= 64


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_anchor": 5}, "at 'max_anchor': expected at least the anchor, 10, got 5."),
        ({"dead_zone": 1.0}, "at 'dead_zone': expected a share from 0 to below 1, got 1.0."),
        ({"max_ratio": 0.5}, "at 'max_ratio': expected a number of at least 1, got 0.5."),
        ({"max_batches": {3: 0}}, "at 'max_batches': expected an integer of at least 1 for rank 3, got 0."),
    ],
)
def test_wrong_settings_are_errors(kwargs, words):
    with pytest.raises(DistributedError) as caught:
        CadenceSettings(**kwargs)
    assert str(caught.value) == words
