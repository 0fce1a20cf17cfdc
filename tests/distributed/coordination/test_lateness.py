"""Ranks that miss a deadline: those that show signs of life are late, and the others are lost."""

import pytest

from flodl.distributed.coordination import Evict, Reduce, Refuse, SuspicionSettings

SHORT = SuspicionSettings(floor_ms=500.0, first_reduce_ms=1000.0, answer_ms=100.0, again_ms=50.0)


@pytest.fixture
def world(make_world):
    """Three ranks that have trained one window; their plans are due after 500 ms."""
    found = make_world(0, 1, 2, suspicion=SHORT)
    found.complete()
    found.window()
    return found


def test_a_rank_that_lives_is_looked_at_again_later(world):
    world.tick(alive=(0, 1, 2))
    assert not world.reasons(Evict)
    assert world.coordinator.wake_ms == world.now + SHORT.again_ms
    world.window()
    assert world.last(Reduce).members == (0, 1, 2)


def test_all_ranks_that_are_due_are_suspected_and_the_silent_ones_are_evicted(world):
    due_ms = world.coordinator.wake_ms
    assert world.coordinator.suspects(due_ms - 1.0) == []
    assert world.coordinator.suspects(due_ms) == [0, 1, 2]
    world.tick(alive=(0, 2))
    assert [each.rank for each in world.commands if isinstance(each, Evict)] == [1]
    world.finish()


def test_a_rank_that_falls_silent_while_it_is_late_is_evicted(world):
    for _ in range(3):
        world.tick(alive=(0, 1, 2))
    world.tick(alive=(0, 1))
    assert [each.rank for each in world.commands if isinstance(each, Evict)] == [2]


def test_a_rank_that_finished_in_time_is_not_suspected(world):
    due_ms = world.coordinator.wake_ms
    world.arrive(1)
    assert world.coordinator.suspects(due_ms) == [0, 2]


def test_the_work_of_a_late_rank_counts(world):
    world.tick(alive=(0, 1, 2))
    world.window()
    assert not world.reasons(Refuse)
    assert world.coordinator.version == 3


def test_silent_ranks_are_evicted_at_the_deadline_of_a_reduction(world):
    for rank in range(3):
        world.arrive(rank)
    world.tick(alive=(1, 2))
    assert [each.rank for each in world.commands if isinstance(each, Evict)] == [0]


def test_ranks_that_live_complete_a_reduction_after_its_deadline(world):
    for rank in range(3):
        world.arrive(rank)
    world.tick(alive=(0, 1, 2))
    assert not world.reasons(Evict)
    assert world.coordinator.wake_ms == world.now + SHORT.again_ms
    world.complete()
    assert world.coordinator.version == 3


def test_a_reduction_that_fails_without_a_loss_gets_twice_the_time(world):
    for rank in range(3):
        world.arrive(rank)
    first = world.last(Reduce)
    world.fail("timeout")
    second = world.last(Reduce)
    assert second.timeout_ms == 2 * first.timeout_ms
    assert world.coordinator.state()["round"]["patience"] == 2.0


def test_a_restarted_supervisor_knows_who_was_late(world):
    world.tick(alive=(0, 2))
    world.tick(alive=(0, 2))
    world.restart_supervisor()
