"""Whatever happens in whatever order: coverage stays exact, and the run can be finished."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.distributed.coordination import MeetingSettings, SuspicionSettings

ACTIONS = ["arrive"] * 14 + ["part", "nan", "lose", "kill", "join", "leave", "zombie", "tick", "late"]
ACTIONS += ["complete"] * 10 + ["fail", "restart"]
EVENTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), max_size=80)


def act(world, action, number):
    at_work = [rank for rank in sorted(world.ranks) if world.ranks[rank].work is not None]
    rank = at_work[number % len(at_work)] if at_work else None
    if action == "arrive" and rank is not None:
        world.arrive(rank)
    elif action == "part" and rank is not None:
        world.arrive(rank, steps=min(number, world.ranks[rank].work[1].batches))
    elif action == "nan" and rank is not None:
        world.arrive(rank, loss=float("nan"))
    elif action == "lose" and number in world.ranks:
        world.lose(number)
    elif action == "kill":
        world.kill(number)
    elif action == "join" and number not in world.ranks:
        world.lose(number)  # the supervisor noticed before
        world.join(number)
    elif action == "leave" and number in world.ranks:
        world.leave(number)
    elif action == "zombie" and world.zombies:
        world.wake(world.zombies[number % len(world.zombies)])
    elif action == "tick":
        world.tick(now=world.now + 1.0)
    elif action == "late" and world.coordinator.wake_ms < float("inf"):
        world.tick()
    elif action == "complete" and world.reduce is not None:
        world.complete()
    elif action == "fail" and world.reduce is not None:
        world.fail()
    elif action == "restart":
        world.restart_supervisor()


def covered(world):
    """Return the committed positions of every epoch, as the pools see them."""
    epochs = world.coordinator.run.epochs
    done = epochs.current * epochs.batches_per_epoch
    for pool in epochs.state()["pools"]:
        done += sum(-(-(stop - start) // pool["batch_size"]) for start, stop in pool["committed"])
    return done


def bring_to_an_end(world):
    """Start again from the last save point if the run had to stop, and finish with whoever is there."""
    for _ in range(3):
        if world.coordinator.status == "stopped" or not world.ranks:
            world.restart_everything()
            world.join(0, 1, 2)
        world.finish()


@settings(max_examples=60, deadline=None)
@given(
    EVENTS,
    st.sampled_from([1, 7, 203, 2003]),
    st.booleans(),
    st.sampled_from([(1.0, 0), (0.5, 0), (0.5, 1), (1.0, 2)]),
)
def test_each_batch_is_committed_exactly_once(make_world, events, num_samples, overlap, meeting):
    quorum, max_ahead = meeting
    world = make_world(
        0, 1, 2,
        num_samples=num_samples,
        num_epochs=2,
        overlap=overlap,
        meeting=MeetingSettings(quorum=quorum, max_ahead=max_ahead, max_staleness=2),
        suspicion=SuspicionSettings(unknown_ms=50.0, floor_ms=20.0, first_reduce_ms=50.0),
        batch_ms={0: 1.0, 1: 2.0, 2: 8.0},
    )  # fmt: skip
    world.save()
    for action, number in events:
        if world.coordinator.status in ("finished", "stopped"):
            break
        act(world, action, number)
        assert world.coordinator.committed == covered(world)
    bring_to_an_end(world)
    assert world.coordinator.committed == 2 * -(-num_samples // 4)
    assert world.coordinator.run.epochs.is_finished
