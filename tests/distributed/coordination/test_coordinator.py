"""Windows are planned, closed, reduced and committed; losses and joins take effect between them."""

import math

import pytest

from flodl.core import DistributedError
from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import (
    Commit,
    CoordinatorSettings,
    Evict,
    Finished,
    MeetingSettings,
    Plan,
    Rebuild,
    Reduce,
    Reduced,
    Refuse,
    Release,
    SavePoint,
    Stop,
    SuspicionSettings,
)


def test_a_run_starts_when_enough_ranks_joined_and_all_receive_the_weights_of_the_first(make_world):
    world = make_world(2, 0, start_ranks=3)
    assert world.commands == []
    world.join(1)
    assert world.last(Rebuild).members == (0, 1, 2)
    reduce = world.last(Reduce)
    assert (reduce.members, reduce.weights, reduce.donor) == ((0, 1, 2), (0, 0, 0), 0)
    world.complete()
    assert [lease.batches for lease in world.last(Plan).leases] == [10, 10, 10]


def test_counts_follow_the_speeds_and_weights_are_the_batches_really_trained(make_world):
    world = make_world(0, 1, batch_ms={0: 10.0, 1: 40.0})
    world.complete()
    world.window()
    assert [lease.batches for lease in world.last(Plan).leases] == [40, 10]
    world.arrive(0, steps=33)
    world.arrive(1)
    assert world.last(Reduce).weights == (33, 10)
    world.complete()
    assert world.coordinator.committed == 20 + 43
    assert world.last(Plan).leases[0].ranges[0] == (80 + 33 * 4, 80 + 40 * 4), "the rest goes back"


@pytest.mark.parametrize("num_samples", range(396, 405))
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_an_epoch_ends_for_every_number_of_samples(make_world, num_samples, num_ranks):
    world = make_world(*range(num_ranks), num_samples=num_samples, num_epochs=2, batch_ms={0: 3.0, 1: 17.0})
    world.finish()
    assert world.coordinator.committed == 2 * math.ceil(num_samples / 4)
    assert world.reasons(Finished) == ["all 2 epochs are committed"]


def test_acknowledgements_never_count_as_work(make_world):
    world = make_world(0, 1)
    world.complete()
    world.window()
    committed = world.coordinator.committed
    for _ in range(5):
        world.tick(now=world.now + 1.0)
    world.join(2)
    assert world.coordinator.committed == committed == 20
    world.arrive(0), world.arrive(1)
    assert world.coordinator.committed == 20, "arrived is not committed"
    world.complete()
    assert world.coordinator.committed == 40


def test_the_position_reaches_the_committed_batches_without_a_jump_when_ranks_meet(make_world):
    world = make_world(0, 1, 2, num_samples=4000, batch_ms={0: 10.0, 1: 20.0, 2: 40.0})
    world.complete()
    for _ in range(4):
        plan = world.last(Plan)
        ends = {
            start + lease.batches * per_step for lease, (start, per_step) in zip(plan.leases, plan.positions)
        }
        world.window()
        assert all(end == pytest.approx(world.coordinator.committed) for end in ends)
        assert {start for start, _ in world.last(Plan).positions} == {world.coordinator.committed}


def test_waiting_is_not_part_of_the_reduction_time(make_world):
    world = make_world(0, 1, guard="none")
    world.complete(reduce_ms=100.0)
    for _ in range(6):
        world.arrive(0)
        world.now += 100_000.0
        world.arrive(1)
        world.complete(reduce_ms=0.1)
    assert world.coordinator.run.elche.anchor == 10
    world.window(reduce_ms=1000.0)
    assert world.coordinator.run.elche.anchor == 20
    assert "the anchor grows from 10 to 20" in world.last(Commit).reasons[0]


def test_a_reduction_takes_until_its_last_member_has_completed_it(make_world):
    world = make_world(0, 1, guard="none")
    world.complete()
    for _ in range(2):
        world.arrive(0), world.arrive(1)
        found = world.reduce
        world.send(Reduced((0,), found.window, found.generation, reduce_ms=0.2))
        assert world.reduce is not None, "one member is not done"
        world.send(Reduced((1,), found.window, found.generation, reduce_ms=13_800.0))
    assert world.coordinator.run.elche.anchor == 20


def test_the_divergence_of_a_window_reaches_the_guard_and_its_reason_the_commit(make_world):
    world = make_world(0, 1, guard="level")
    world.complete()
    for divergence in (0.06, 0.07, 0.08, 0.09):
        world.window(divergence=divergence)
    assert world.last(Commit).reasons == (
        "the divergence rose three times in a row, to 0.09 (threshold 0.05)",
    )


def test_a_rank_lost_while_training_gives_its_batches_back(make_world):
    world = make_world(0, 1, num_samples=400)
    world.complete()
    lost = world.ranks[1].work[1]
    world.lose(1)
    assert world.reasons(Rebuild) == ["rank 0 joins; rank 1 joins"], "not before the window closes"
    world.arrive(0)
    assert world.reasons(Rebuild)[-1] == "rank 1 is lost: its process ended with code 1"
    assert world.last(Reduce).members == (0,)
    world.complete()
    assert world.last(Plan).leases[0].ranges[0] == lost.ranges[0]
    world.finish()
    assert world.coordinator.committed == 100


def test_survivors_repeat_a_failed_reduction_with_the_work_they_have(make_world):
    world = make_world(0, 1, 2)
    world.complete()
    for rank in range(3):
        world.arrive(rank)
    assert world.last(Reduce).weights == (10, 10, 10)
    world.lose(1)
    world.fail()
    again = world.last(Reduce)
    assert (again.window, again.attempt, again.members, again.weights) == (1, 1, (0, 2), (10, 10))
    assert again.generation == 2
    assert world.last(Rebuild).members == (0, 2)
    assert again.reason == "again, because it failed: rank 0: connection closed by peer"
    world.complete()
    assert world.coordinator.committed == 20


def test_the_work_of_a_rank_that_is_lost_after_all_others_have_the_result_counts(make_world):
    world = make_world(0, 1)
    world.complete()
    world.arrive(0), world.arrive(1)
    world.kill(1)
    world.complete()
    assert world.coordinator.committed == 0
    world.lose(1)
    assert world.coordinator.committed == 20
    assert world.last(Commit).members == (0, 1)


def test_a_reduction_that_fails_again_and_again_stops_the_run(make_world):
    world = make_world(0, 1)
    for _ in range(3):
        world.fail("no route to host")
    assert world.reasons(Stop) == ["the reduction failed 3 times; the last: rank 0: no route to host"]
    assert world.coordinator.status == "stopped"


def test_a_rank_that_joins_receives_the_version_with_weight_0_and_then_trains(make_world):
    world = make_world(0, 1)
    world.complete()
    world.join(2)
    world.window()
    reduce = [each for each in world.commands if isinstance(each, Reduce)][1]
    assert (reduce.members, reduce.weights) == ((0, 1, 2), (10, 10, 0))
    assert [lease.rank for lease in world.last(Plan).leases] == [0, 1, 2]


def test_a_rank_that_joins_during_a_repeated_reduction_waits_for_the_next_window(make_world):
    world = make_world(0, 1)
    world.complete()
    world.arrive(0), world.arrive(1)
    world.join(2)
    world.lose(1)
    world.fail()
    assert world.last(Reduce).members == (0,)
    world.complete()
    world.window()
    assert world.last(Commit).members == (0, 2)


def test_a_zombie_of_an_old_generation_is_refused(make_world):
    world = make_world(0, 1)
    world.complete()
    world.lose(1)
    [zombie] = world.zombies
    world.wake(zombie)
    assert world.reasons(Refuse) == ["rank 1 is lost: its process ended with code 1; it may join again"]
    world.join(1)
    world.arrive(0)
    world.complete()
    world.wake(zombie)
    assert world.reasons(Refuse)[-1] == "rank 1 of generation 1 was replaced in generation 2"
    world.finish()
    assert world.coordinator.committed == 250


def test_a_report_that_comes_twice_counts_once(make_world):
    world = make_world(0, 1)
    world.complete()
    work = world.ranks[0].work
    world.arrive(0)
    world.wake((0, work))
    assert world.reasons(Refuse) == ["plan 0 of rank 0 is not open"]
    world.arrive(1)
    assert world.last(Reduce).weights == (10, 10)


def test_a_second_process_with_the_number_of_a_member_is_refused(make_world):
    world = make_world(0, 1)
    world.complete()
    world.join(1)
    assert world.reasons(Refuse) == ["rank 1 is already a member; use another number"]


def test_a_rank_that_hangs_while_training_is_evicted_after_its_deadline(make_world):
    world = make_world(0, 1, suspicion=SuspicionSettings(floor_ms=500.0))
    world.complete()
    world.window()
    planned = world.now
    world.kill(1)
    world.arrive(0)
    assert world.coordinator.wake_ms == pytest.approx(planned + 500.0)
    world.tick(now=planned + 499.0)
    assert world.reasons(Evict) == []
    world.tick()
    assert world.reasons(Evict) == ["it did not finish its batches within the deadline"]
    assert world.last(Reduce).members == (0,)


def test_the_deadline_is_three_times_the_predicted_window(make_world):
    world = make_world(0, 1, batch_ms={0: 1000.0, 1: 1000.0})
    world.complete()
    assert world.coordinator.wake_ms == world.now + 600_000.0, "unknown speed"
    world.window()
    assert world.coordinator.wake_ms == pytest.approx(world.now + 30_000.0)


def test_a_rank_that_hangs_in_a_reduction_is_found_because_all_others_report(make_world):
    world = make_world(0, 1, 2)
    world.complete()
    for rank in range(3):
        world.arrive(rank)
    world.kill(2)
    world.now += world.last(Reduce).timeout_ms
    world.fail("timed out")
    assert world.last(Reduce).attempt == 0
    world.tick()
    assert world.last(Evict) == Evict(2, "it did not finish the reduction within the deadline")
    assert (world.last(Reduce).attempt, world.last(Reduce).members) == (1, (0, 1))


def test_the_work_of_a_rank_whose_loss_is_not_finite_does_not_enter_the_mean(make_world):
    world = make_world(0, 1, num_samples=400)
    world.complete()
    world.arrive(0, loss=math.nan)
    assert world.reasons(Refuse) == ["the loss of rank 0 is nan: its work is left out of the mean"]
    world.arrive(1)
    assert (world.last(Reduce).weights, world.last(Reduce).bases) == ((0, 10), (-1, 1))
    world.complete()
    world.finish()
    assert world.coordinator.committed == 100


def test_a_run_stops_if_no_rank_has_usable_weights(make_world):
    world = make_world(0, 1)
    world.complete()
    world.arrive(0, loss=math.inf)
    world.arrive(1, loss=math.inf)
    assert "no usable weights of version 1 are left" in world.reasons(Stop)[0]


def test_a_rank_that_leaves_brings_its_work_first(make_world):
    world = make_world(0, 1)
    world.complete(), world.window()
    world.leave(1)
    world.window()
    assert world.last(Commit).members == (0, 1)
    assert world.reasons(Release) == ["all its work is committed"]
    assert [lease.rank for lease in world.last(Plan).leases] == [0]
    world.window()
    assert world.last(Rebuild).reason == "rank 1 leaves"


def test_a_rank_that_wants_to_leave_and_ends_before_its_work_is_committed_is_lost(make_world):
    world = make_world(0, 1, num_samples=400)
    world.complete()
    world.leave(1)
    world.lose(1, "its process ended with code 0")
    world.arrive(0)
    assert world.last(Rebuild).reason == "rank 1 is lost: its process ended with code 0"
    world.complete(), world.finish()
    assert world.coordinator.committed == 100, "its batches were trained by others"


def test_the_run_stops_with_a_save_point_if_too_few_ranks_are_left(make_world):
    world = make_world(0, 1, 2, min_ranks=2)
    world.complete(), world.window()
    world.lose(1), world.lose(2)
    world.window()
    assert world.reasons(SavePoint) == ["too few ranks are left"]
    assert world.reasons(Stop) == ["1 ranks are left, and the run needs 2"]


def test_save_points_come_after_each_epoch_and_every_few_windows_from_a_holder_of_the_version(make_world):
    world = make_world(0, 1, num_samples=320, num_epochs=2, save_every=3)
    world.finish()
    found = [each for each in world.commands if isinstance(each, SavePoint)]
    assert found[0].reason == "3 windows since the last one"
    assert "epoch 0 is finished" in [each.reason for each in found]
    assert found[-1].reason == "epoch 1 is finished"
    kinds = [type(each) for each in world.commands]
    for index, kind in enumerate(kinds):
        assert kind is not SavePoint or kinds[index - 1] is Commit, "before anyone trains on"


def test_the_fastest_rank_does_not_end_the_run_before_the_others(make_world):
    world = make_world(0, 1, num_samples=40, overlap=True, num_epochs=2, meeting=MeetingSettings(quorum=0.5))
    world.complete()
    while world.coordinator.status == "running" and world.ranks[0].work:
        world.arrive(0)
        world.tick()
        if world.reduce:
            world.complete()
    assert world.coordinator.status == "running"
    world.finish()
    assert world.coordinator.committed == 20


def test_ranks_without_a_share_of_the_last_window_count_as_arrived(make_world):
    world = make_world(*range(4), num_samples=4 * 46, batch_ms={0: 1.0})
    world.complete()
    world.window()
    assert [lease.batches for lease in world.last(Plan).leases] == [6]
    world.finish()
    assert world.last(Commit).members == (0, 1, 2, 3)


def test_batches_that_come_back_at_the_end_are_trained_by_ranks_that_wait(make_world):
    world = make_world(0, 1, num_samples=80, meeting=MeetingSettings(quorum=0.5))
    world.complete()
    world.arrive(0)
    world.tick()
    world.complete()
    assert world.ranks[0].work is None
    world.lose(1)
    assert world.ranks[0].work is not None
    world.finish()
    assert world.coordinator.committed == 20


def test_a_late_rank_brings_its_work_to_the_next_window_with_its_own_weight_and_base(make_world):
    world = make_world(0, 1, 2, meeting=MeetingSettings(quorum=0.6), num_samples=4000)
    world.complete()
    world.arrive(0), world.arrive(1)
    world.tick()
    assert world.last(Reduce).reason == "2 of 3 ranks arrived, and the grace period is over"
    world.complete()
    assert world.last(Commit).late == (2,)
    world.arrive(2)
    world.arrive(0), world.arrive(1)
    reduce = world.last(Reduce)
    assert (reduce.members, reduce.bases, reduce.donor) == ((0, 1, 2), (2, 2, 1), 0)
    before = world.consensus[2]
    world.complete()
    weights = dict(zip(reduce.members, reduce.weights))
    mean = sum(weight * weight for weight in weights.values()) / sum(weights.values())
    assert world.consensus[3] == pytest.approx(before + mean), "committed progress is never undone"


def test_the_work_of_late_ranks_adds_up_to_the_mean_over_all_ranks(make_world):
    world = make_world(
        0, 1, 2, meeting=MeetingSettings(quorum=0.6), num_samples=40_000, batch_ms={0: 10.0, 1: 10.0, 2: 40.0}
    )
    world.complete()
    world.window()
    assert world.last(Reduce).scale == 1.0, "all ranks are in time"
    assert [lease.batches for lease in world.last(Plan).leases] == [40, 40, 10]
    world.arrive(1), world.arrive(2)
    world.tick()
    assert world.last(Reduce).scale == pytest.approx(50 / 90), "rank 0 is late"
    world.complete()
    world.arrive(0), world.arrive(2)
    world.tick()
    reduce = world.last(Reduce)
    assert (reduce.weights, reduce.scale) == ((40, 10), pytest.approx(50 / 90))
    shares = [reduce.scale * weight / sum(reduce.weights) for weight in reduce.weights]
    assert shares == pytest.approx([40 / 90, 10 / 90]), "the shares in a window of all ranks"


def test_the_ranks_that_are_present_train_the_rest_of_an_epoch_without_those_that_are_late(make_world):
    world = make_world(0, 1, 2, meeting=MeetingSettings(quorum=0.6), num_samples=4 * 90)
    world.complete()
    world.window()
    world.arrive(0), world.arrive(1)
    world.tick(), world.complete()
    assert world.last(Commit).late == (2,)
    assert [lease.batches for lease in world.last(Plan).leases] == [15, 15], "not 10 each, and then 5 each"
    world.finish()
    assert world.coordinator.committed == 90


def test_work_that_started_too_many_versions_ago_is_refused_and_trained_by_others(make_world):
    world = make_world(0, 1, 2, meeting=MeetingSettings(quorum=0.6, max_staleness=2), num_samples=4000)
    world.complete()
    for _ in range(2):
        world.arrive(0), world.arrive(1)
        world.tick(), world.complete()
    assert world.coordinator.run.meeting.stale() == []
    lease = world.ranks[2].work[1]
    world.arrive(0), world.arrive(1)
    world.tick(), world.complete()
    assert world.last(Plan).leases[0].ranges[0][0] == lease.ranges[0][0], "others train its batches"
    world.arrive(2)
    assert world.last(Refuse).reason == "its work started 3 versions ago, and at most 2 are allowed"
    world.finish()
    assert world.coordinator.committed == 1000
    assert 2 in world.last(Commit).members


def test_a_rank_may_run_ahead_by_one_window_and_not_more(make_world):
    world = make_world(0, 1, meeting=MeetingSettings(max_ahead=1), num_samples=4000)
    world.complete()
    world.window()
    world.arrive(0)
    assert world.ranks[0].work is not None
    world.arrive(0)
    assert world.ranks[0].work is None, "two windows are not committed"
    world.arrive(1)
    reduce = world.last(Reduce)
    assert reduce.weights[0] == world.coordinator.run.round.weights[0] > reduce.weights[1]
    assert world.ranks[1].work is not None, "it trains during the reduction"
    world.complete()
    assert world.ranks[0].work is not None


def test_a_gate_on_running_ahead_never_blocks_a_collective(make_world):
    """The slow rank has nothing to do while the fast one may not continue: the window still closes."""
    world = make_world(0, 1, meeting=MeetingSettings(max_ahead=1), num_samples=48, batch_ms={0: 1.0})
    world.complete()
    world.finish(most=60)
    assert world.coordinator.committed == 12


def test_counts_that_change_while_ranks_train_do_not_change_their_plans(make_world):
    world = make_world(0, 1, 2, meeting=MeetingSettings(quorum=0.6), num_samples=4000)
    world.complete()
    work = world.ranks[2].work
    world.batch_ms = {0: 1.0, 1: 30.0}
    world.arrive(0), world.arrive(1)
    world.tick()
    world.complete()
    assert world.ranks[2].work == work
    world.finish()
    assert world.coordinator.committed == 1000


def test_a_hopelessly_slow_rank_gets_no_work_and_still_receives_each_version(make_world):
    world = make_world(0, 1, 2, cadence=CadenceSettings(anchor=2), batch_ms={2: 10_000.0})
    world.complete()
    world.window()
    assert "rank 2 rests" in world.last(Commit).reasons[0]
    assert [lease.rank for lease in world.last(Plan).leases] == [0, 1]
    world.window()
    assert (world.last(Commit).members, world.ranks[2].version) == ((0, 1, 2), 3)
    world.lose(0), world.lose(1)
    assert world.ranks[2].work is not None, "somebody has to work"


def test_losing_all_holders_of_the_version_stops_the_run(make_world):
    world = make_world(0, 1, meeting=MeetingSettings(quorum=0.5))
    world.complete()
    world.arrive(0)
    world.tick()
    world.complete()
    world.lose(0)
    assert "no remaining rank holds version 2" in world.reasons(Stop)[0]
    assert world.wake((1, world.ranks[1].work)) == [Refuse(1, "the run is stopped")]


def test_work_waits_if_the_only_holder_in_a_reduction_is_lost(make_world):
    world = make_world(0, 1, 2, meeting=MeetingSettings(quorum=0.6), num_samples=4000)
    world.complete()
    world.arrive(0), world.arrive(1)
    world.tick(), world.complete()
    world.arrive(2), world.arrive(0)
    world.tick()
    assert world.last(Reduce).members == (0, 2)
    world.lose(0)
    world.fail()
    assert world.coordinator.run.round is None
    world.reduce = None
    world.ranks[2].progress += world.contributed[2]
    world.arrive(1)
    assert (world.last(Reduce).members, world.last(Reduce).bases) == ((1, 2), (2, 1))
    world.finish()
    assert world.coordinator.committed == 1000


@pytest.mark.parametrize("name", ["min_ranks", "max_attempts"])
def test_wrong_settings_are_errors(name):
    with pytest.raises(DistributedError, match=f"at '{name}': expected an integer of at least 1, got 0"):
        CoordinatorSettings(**{name: 0})
    with pytest.raises(
        DistributedError, match="at 'max_staleness': expected an integer of at least 1, got 0"
    ):
        MeetingSettings(max_staleness=0)
    with pytest.raises(DistributedError, match="at 'max_grace': expected a number of at least 0, got -1"):
        MeetingSettings(max_grace=-1)


def test_before_the_first_commit_another_rank_starts_if_the_first_one_is_lost(make_world):
    world = make_world(0, 1, 2)
    world.lose(0)
    world.ranks[1].version = 0
    world.fail()
    assert world.reduce.donor == 1
    assert world.reduce.bases == (0, -1)
    world.complete()
    world.finish()
    assert world.coordinator.status == "finished"


def test_the_only_rank_that_holds_the_version_leaves_after_another_received_it(make_world):
    world = make_world(0, 1, meeting=MeetingSettings(quorum=0.5, max_grace=0.0))
    world.complete()
    world.leave(1)
    world.arrive(1)
    assert world.reduce.members == (1,)
    world.complete()
    assert not world.reasons(Release)
    assert 1 in world.ranks
    world.arrive(0)
    assert (world.reduce.members, world.reduce.donor) == ((0, 1), 1)
    world.complete()
    assert world.last(Release).rank == 1
    world.finish()
    assert world.coordinator.status == "finished"
