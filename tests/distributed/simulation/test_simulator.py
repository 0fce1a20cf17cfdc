"""Simulated runs: unequal, throttled, lost and joining ranks."""

import math

import pytest

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import CoordinatorSettings, MeetingSettings, SuspicionSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.simulation import Churn, Network, SimulatedRank, cluster, simulate, simulate_ddp

FREE = Network(latency_ms=0.0, rebuild_ms=0.0)
AHEAD = MeetingSettings(quorum=0.9, max_ahead=1)


def endless():
    return Epochs(num_samples=10**9, batch_size=1)


def settings(num_ranks, **kwargs):
    return CoordinatorSettings(guard="none", start_ranks=num_ranks, **kwargs)


def test_unequal_ranks_waste_nothing_while_data_parallel_ones_wait_for_the_slowest():
    ranks = [SimulatedRank(10.0), SimulatedRank(10.0), SimulatedRank(40.0)]
    ours = simulate(ranks, endless(), settings(3), network=FREE, until_ms=100_000.0, warm_ms=5000.0)
    ddp = simulate_ddp(ranks, network=FREE, until_ms=100_000.0)
    assert ours.goodput > 0.99
    assert ddp.goodput == pytest.approx(3 / 9, abs=0.01)


def test_equal_ranks_lose_nothing_against_data_parallel_training():
    ranks = cluster(4, fastest_ms=10.0)
    ours = simulate(ranks, endless(), settings(4), network=FREE, until_ms=30_000.0)
    assert ours.goodput > 0.99
    assert simulate_ddp(ranks, network=FREE, until_ms=30_000.0).goodput > 0.99


def test_a_costly_reduction_lengthens_the_windows_until_it_takes_its_target_share():
    network = Network(num_bytes=1e8)
    few = settings(8, cadence=CadenceSettings(growth=False))
    fixed = simulate(cluster(8), endless(), few, network=network, until_ms=80_000.0)
    grown = simulate(cluster(8), endless(), settings(8), network=network, until_ms=80_000.0)
    assert fixed.goodput < 0.5
    assert grown.goodput > 0.9
    assert any("the anchor grows" in reason for reason in grown.reasons)


@pytest.mark.parametrize(("meeting", "target"), [(MeetingSettings(), "2.0%"), (AHEAD, "5.0%")])
def test_windows_are_longer_with_little_divergence_unless_ranks_train_during_reductions(meeting, target):
    guarded = CoordinatorSettings(guard="level", start_ranks=8, meeting=meeting)
    outcome = simulate(cluster(8), endless(), guarded, network=Network(num_bytes=1e8), until_ms=80_000.0)
    grown = [reason for reason in outcome.reasons if "the anchor grows" in reason]
    assert grown
    assert all(f"(target {target})" in reason for reason in grown)


def test_a_throttled_rank_is_followed_down_and_up():
    throttled = SimulatedRank(10.0, throttle=((30_000.0, 4.0), (60_000.0, 1.0)))
    outcome = simulate(
        [throttled, SimulatedRank(10.0)], endless(), settings(2), network=FREE, until_ms=90_000.0
    )
    # Between the two, the pair can train 1.25 instead of 2 batches per 10 ms.
    assert outcome.committed_batches == pytest.approx(2 * 3000 * 2 + 3000 * 1.25, rel=0.02)
    assert outcome.goodput > 0.98


def test_ranks_that_slow_down_over_time_keep_arriving_together():
    ranks = [SimulatedRank(100.0, drift=10.0), SimulatedRank(100.0)]
    outcome = simulate(ranks, endless(), settings(2), network=FREE, until_ms=720_000.0)
    assert outcome.goodput > 0.97
    assert outcome.possible_batches < 1.6 * 7200


def test_every_batch_is_committed_under_losses_hangs_and_joins():
    churn = Churn(30_000.0, hang=0.5, back_after_ms=5000.0)
    num_losses = num_repeated = 0
    for seed in range(3):
        outcome = simulate(
            cluster(6, fastest_ms=5.0, ratio=4.0, jitter=0.1),
            Epochs(num_samples=30_001, batch_size=4, num_epochs=3, overlap=bool(seed % 2)),
            settings(4, meeting=AHEAD, suspicion=SuspicionSettings(floor_ms=500.0, unknown_ms=2000.0)),
            churn=churn,
            seed=seed,
        )
        assert (outcome.status, outcome.committed_batches) == ("finished", 3 * math.ceil(30_001 / 4))
        num_losses += outcome.num_losses
        num_repeated += outcome.num_repeated
    assert num_losses > 10
    assert num_repeated > 0


def test_ranks_wait_for_a_supervisor_that_is_busy_with_messages():
    """A window of 100 ranks has 500 messages: at 1 ms each, the supervisor needs longer than the window."""
    goodput = [
        simulate(
            cluster(100),
            endless(),
            settings(100, meeting=AHEAD, cadence=CadenceSettings(anchor=10, growth=False)),
            network=Network(latency_ms=0.0, rebuild_ms=0.0, message_ms=message_ms),
            until_ms=20_000.0,
            warm_ms=5000.0,
        ).goodput
        for message_ms in (0.0, 0.01, 1.0)
    ]
    assert goodput[0] > 0.99
    assert goodput[1] > 0.9
    assert goodput[2] < 0.5


def test_a_slow_rank_that_lives_is_not_evicted():
    """Its batches take 100 times as long from one moment to the next."""
    ranks = [SimulatedRank(10.0), SimulatedRank(10.0, throttle=((20_000.0, 100.0),))]
    suspicion = SuspicionSettings(floor_ms=500.0)
    outcome = simulate(ranks, endless(), settings(2, suspicion=suspicion), network=FREE, until_ms=60_000.0)
    assert outcome.num_losses == 0


def test_the_same_seed_gives_the_same_run():
    runs = [
        simulate(
            cluster(5, ratio=3.0, jitter=0.2),
            endless(),
            settings(5, meeting=AHEAD),
            churn=Churn(30_000.0),
            until_ms=60_000.0,
            seed=seed,
        )
        for seed in (7, 7, 8)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_rank_that_joins_late_takes_its_share():
    ranks = [SimulatedRank(10.0), SimulatedRank(10.0, joins_ms=50_000.0)]
    outcome = simulate(ranks, endless(), settings(1), network=FREE, until_ms=100_000.0)
    assert outcome.committed_batches == pytest.approx(5_000 + 10_000, rel=0.02)


@pytest.mark.slow
def test_a_thousand_ranks_that_are_lost_and_come_back_keep_88_percent_where_a_full_barrier_keeps_30():
    ranks = cluster(1000, fastest_ms=100.0, ratio=8.0, jitter=0.05)
    network = Network(num_bytes=4e8, rebuild_ms=200.0, rebuild_ms_per_rank=1.0)
    goodput = {}
    for name, meeting in (("barrier", MeetingSettings()), ("ahead", AHEAD)):
        outcome = simulate(
            ranks,
            endless(),
            settings(
                900,
                cadence=CadenceSettings(anchor=64, growth=False),
                meeting=meeting,
                suspicion=SuspicionSettings(first_reduce_ms=10_000.0),
            ),
            network=network,
            churn=Churn(3_600_000.0, hang=0.5),
            until_ms=1_500_000.0,
            warm_ms=120_000.0,
        )
        goodput[name] = outcome.goodput
    assert goodput["barrier"] < 0.30
    assert goodput["ahead"] >= 0.88
