"""Work that ranks do together counts as a whole: `CoordinatorSettings(shared=True)`."""

from flodl.distributed.coordination import (
    Arrived,
    Coordinator,
    CoordinatorSettings,
    Joined,
    Lost,
    Plan,
    Reduce,
    Reduced,
)
from flodl.distributed.coverage import Epochs


def test_shared_work_counts_as_a_whole_when_a_rank_is_lost_after_the_others_completed_it():
    settings = CoordinatorSettings(start_ranks=3, shared=True)
    coordinator = Coordinator(Epochs(num_samples=240, batch_size=4), settings)
    commands = [command for rank in range(3) for command in coordinator.handle(0.0, Joined(rank))]
    reduce = next(command for command in commands if isinstance(command, Reduce))
    commands = coordinator.handle(1.0, Reduced((0, 1, 2), 0, reduce.generation, 1.0))
    plan = next(command for command in commands if isinstance(command, Plan))
    batches = sum(lease.batches for lease in plan.leases)
    # Rank 1 is lost before it reports, rank 0 has completed the window, and rank 2 has returned to its start.
    for number, lease in zip(plan.plans, plan.leases):
        if lease.rank != 1:
            steps = lease.batches if lease.rank == 0 else 0
            coordinator.handle(2.0, Arrived(lease.rank, plan.generation, number, steps, 10.0))
    commands = coordinator.handle(3.0, Lost(1, "killed"))
    again = next(command for command in commands if isinstance(command, Reduce))
    assert dict(zip(again.members, again.weights)) == {0: plan.leases[0].batches, 2: 0}
    coordinator.handle(4.0, Reduced((0, 2), again.window, again.generation, 1.0))
    assert coordinator.committed == batches


def test_shared_work_that_nobody_completed_is_trained_again():
    settings = CoordinatorSettings(start_ranks=2, shared=True)
    coordinator = Coordinator(Epochs(num_samples=240, batch_size=4), settings)
    commands = [command for rank in range(2) for command in coordinator.handle(0.0, Joined(rank))]
    reduce = next(command for command in commands if isinstance(command, Reduce))
    commands = coordinator.handle(1.0, Reduced((0, 1), 0, reduce.generation, 1.0))
    plan = next(command for command in commands if isinstance(command, Plan))
    coordinator.handle(2.0, Lost(1, "killed"))
    commands = coordinator.handle(3.0, Arrived(0, plan.generation, plan.plans[0], 0, 0.0))
    again = next(command for command in commands if isinstance(command, Reduce))
    commands = coordinator.handle(4.0, Reduced((0,), again.window, again.generation, 1.0))
    assert coordinator.committed == 0
    plan = next(command for command in commands if isinstance(command, Plan))
    assert plan.leases[0].ranges[0][0] == 0
    assert coordinator.run.epochs.free_batches + plan.leases[0].batches == 60
