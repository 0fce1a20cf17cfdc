"""What a supervisor writes: the ledger, the journal and the run log."""

import pytest

from flodl.core import DistributedError
from flodl.distributed.coordination import (
    Arrived,
    Commit,
    Coordinator,
    CoordinatorSettings,
    Joined,
    Plan,
    Reduced,
)
from flodl.distributed.coverage import Epochs, Lease
from flodl.distributed.supervisor import (
    JournalFile,
    Ledger,
    RunLog,
    SupervisorSettings,
    read_journal,
    read_log,
)


def commit(window):
    return Commit(window, window + 1, (0, 1), 0, 0, (), ())


def test_only_committed_work_counts_in_means():
    ledger = Ledger(batch_size=4)
    leases = [Lease(0, 0, 0, 3, ((0, 12),)), Lease(1, 1, 0, 1, ((12, 14),))]
    ledger.plan(Plan(0, 1, (0, 1), tuple(leases), ((0.0, 1.0),) * 2, ""))
    ledger.arrive(Arrived(0, 1, 0, 3, 30.0, loss=2.0), {"accuracy": (9.0, 12.0)})
    ledger.arrive(Arrived(1, 1, 1, 1, 10.0, loss=6.0), {"accuracy": (1.0, 2.0)})
    ledger.reduce(0, {0: [(leases[0], 3)]})
    ledger.forget(1)
    report = ledger.commit(commit(0), 3)
    assert (report.loss, report.metrics) == (2.0, {"accuracy": 0.75})
    assert report.work == [(0, 0, 3, ((0, 12),))]
    assert ledger.epochs() == {0: {"loss": 2.0, "accuracy": 0.75}}
    assert (ledger.ranks[0].steps, ledger.ranks[0].samples) == (3, 12)
    assert (ledger.ranks[1].steps, ledger.ranks[1].trained_steps) == (0, 1)


def test_the_work_of_a_lost_rank_counts_if_it_is_in_the_reduction():
    ledger = Ledger(batch_size=4)
    lease = Lease(0, 0, 0, 2, ((0, 8),))
    ledger.plan(Plan(0, 1, (0,), (lease,), ((0.0, 1.0),), ""))
    ledger.arrive(Arrived(0, 1, 0, 2, 10.0, loss=3.0), {})
    ledger.reduce(0, {0: [(lease, 2)]})
    ledger.forget(0)
    assert ledger.commit(commit(0), 2).loss == 3.0


@pytest.fixture
def coordinator():
    return Coordinator(Epochs(num_samples=64, batch_size=4))


def run(coordinator, journal, *, until):
    """Train windows of one rank until a version, and write the events."""
    now = 0.0

    def tell(event):
        nonlocal now
        now += 1.0
        journal.write(event, now)
        return coordinator.handle(now, event)

    commands = tell(Joined(0))
    while coordinator.version < until:
        for command in commands:
            if isinstance(command, Plan):
                (plan,), (lease,) = command.plans, command.leases
                tell(Arrived(0, 1, plan, lease.batches, 1.0))
        commands = tell(Reduced((0,), coordinator.version, 1, 1.0))
    return commands


def test_a_confirmed_save_point_is_the_first_line_of_the_journal(coordinator, tmp_path):
    path = tmp_path / "deep" / "journal.jsonl"
    journal = JournalFile(path, coordinator)
    run(coordinator, journal, until=1)
    assert read_journal(path).saved_version == 0
    assert read_journal(path).reached_version == 1
    journal.mark(coordinator)
    assert read_journal(path).saved_version == 0
    journal.confirm()
    journal.close()
    recovery = read_journal(path)
    assert (recovery.saved_version, recovery.reached_version, recovery.lost_batches) == (1, 1, 0)
    resumed = Coordinator.resume(recovery.state, CoordinatorSettings())
    assert resumed.run.epochs.free_batches == 16


def test_events_after_a_save_point_was_asked_for_stay_in_the_journal(coordinator, tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = JournalFile(path, coordinator)
    coordinator.handle(0.0, Joined(0))
    (_, plan) = coordinator.handle(1.0, Reduced((0,), 0, 1, 1.0))
    journal.mark(coordinator)
    for event in (Arrived(0, 1, plan.plans[0], plan.leases[0].batches, 1.0), Reduced((0,), 1, 1, 1.0)):
        journal.write(event, 5.0)
        coordinator.handle(5.0, event)
    journal.confirm()
    journal.close()
    recovery = read_journal(path)
    assert (recovery.saved_version, recovery.reached_version) == (1, 2)
    assert recovery.lost_batches == plan.leases[0].batches


def test_a_run_log_that_was_cut_off_can_be_read(tmp_path):
    path, events = tmp_path / "log.jsonl", []
    log = RunLog(path, events.append)
    log.write("lost", rank=1, reason="gone")
    log.close()
    with path.open("a") as file:
        file.write('{"t_ms": 3')
    assert read_log(path) == events
    assert events[0]["rank"] == 1


def test_wrong_settings_are_errors():
    with pytest.raises(DistributedError, match="at 'restarts': expected an integer of at least 0, got -1"):
        SupervisorSettings(restarts=-1)
