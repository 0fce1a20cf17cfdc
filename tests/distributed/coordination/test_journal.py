"""A restarted supervisor continues from its journal; a restarted run from its last save point."""

import json

import pytest

from flodl.core import DistributedError
from flodl.distributed.coordination import (
    Arrived,
    Coordinator,
    Failed,
    Joined,
    Leaving,
    Lost,
    MeetingSettings,
    Plan,
    Reduce,
    Reduced,
    Tick,
    from_journal,
    to_journal,
)


def test_a_restarted_supervisor_knows_what_ranks_are_working_on(make_world):
    world = make_world(0, 1, meeting=MeetingSettings(quorum=0.5, max_ahead=1))
    world.complete(), world.window()
    world.arrive(0)
    world.tick()
    reduce, plan = world.restart_supervisor()
    assert isinstance(reduce, Reduce)
    assert isinstance(plan, Plan)
    assert reduce.members == world.reduce.members
    assert sorted(lease.rank for lease in plan.leases) == [0, 1]
    assert plan.leases[0] == world.ranks[plan.leases[0].rank].work[1]
    world.finish()
    assert world.coordinator.committed == 250


def test_a_state_in_the_middle_of_the_journal_replaces_what_was_before(make_world):
    world = make_world(0, 1)
    world.complete(), world.window()
    world.journal.append(to_journal(world.coordinator))
    world.window()
    assert from_journal(world.journal[-8:], world.settings).state() == world.coordinator.state()
    del world.journal[1:-10]
    world.restart_supervisor()


def test_a_last_line_that_was_cut_off_is_ignored_and_any_other_damage_is_an_error(make_world):
    world = make_world(0, 1)
    before = world.coordinator.state()
    lines = [*world.journal, to_journal(Tick(), 5.0)[:-4]]
    assert from_journal(lines, world.settings).state() == before
    with pytest.raises(DistributedError, match="line 2 of 3 of the journal is damaged"):
        from_journal([lines[0], "[1, 2", lines[1]], world.settings)
    with pytest.raises(DistributedError, match="the journal has no state of a coordinator"):
        from_journal(lines[1:], world.settings)


@pytest.mark.parametrize(
    "event",
    [
        Joined(1),
        Leaving(2),
        Arrived(1, 2, 3, 4, 5.0, loss=float("nan")),
        Reduced((0, 1), 2, 3, 4.5, None),
        Failed(0, 1, 2, "timed out"),
        Lost(3, "its process ended"),
        Tick(),
    ],
)
def test_every_event_has_a_line(event):
    name, now_ms, *values = json.loads(to_journal(event, 12.5))
    assert (name, now_ms) == (type(event).__name__, 12.5)
    assert len(values) == len(type(event).__match_args__)


def test_a_run_resumes_from_a_save_point_with_another_number_of_ranks(make_world):
    world = make_world(0, 1, 2, num_samples=1000, num_epochs=2, save_every=2, batch_ms={2: 50.0})
    world.complete()
    for _ in range(3):
        world.window()
    saved = world.saved
    assert saved["version"] == 4
    world.restart_everything()
    assert isinstance(world.coordinator, Coordinator)
    assert world.coordinator.committed == saved["committed"]
    world.settings = world.settings.__class__(start_ranks=1)
    world.coordinator = Coordinator.resume(saved, world.settings)
    world.consensus[4] = 0.0
    world.join(7)
    world.ranks[7].version = 4
    world.finish()
    assert world.coordinator.committed == 500
    assert world.coordinator.run.epochs.is_finished
