"""Real ranks that are killed, stopped or fail at each point of the protocol."""

import os
import re
import signal
import threading

import pytest

from flodl.core import DistributedError
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow

# Deadlines for tests that wait for one. The others do not wait, so that a slow machine changes nothing.
SHORT = {"floor_ms": 1500.0}


def kinds(found, kind):
    return [record for record in found.records if record["kind"] == kind]


def lost(found):
    return [record["rank"] for record in found.records if record["kind"] == "lost"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("point", "window"),
    [
        ("adopted", 0),  # before its first plan
        ("plan", 1),
        ("batch", 1),
        ("arrive", 1),
        ("reduce", 0),
        ("reduce", 1),
        ("reduced", 1),
        ("reported", 1),
        ("commit", 1),
        ("adopted", 1),
        ("batch", 2),  # the last window
        ("reduce", 2),
        ("reported", 2),
    ],
)
def test_a_rank_that_is_killed_costs_its_unfinished_work_only(run_ranks, point, window, rank):
    found = run_ranks(3, faults=[Fault(rank, point, window, skip=2 if point == "batch" else 0)])
    # In the last window, the run may be finished before the loss is noticed.
    assert lost(found) in ([rank], [] if (point, window) == ("reported", 2) else [rank])


@pytest.mark.parametrize("point", ["batch", "reduce", "reported"])
def test_two_ranks_that_are_killed_at_once_are_replaced_by_the_third(run_ranks, point):
    found = run_ranks(3, faults=[Fault(0, point, 1), Fault(2, point, 1)])
    assert sorted(lost(found)) == [0, 2]


def test_killing_all_but_one_in_turn_leaves_a_world_of_one(run_ranks):
    found = run_ranks(3, num_samples=400, faults=[Fault(0, "batch", 1), Fault(1, "reduce", 2)])
    assert found.outcome.committed_batches == 100


def test_a_writer_that_is_killed_while_it_saves_is_replaced(run_ranks):
    saves = []
    faults = [Fault(0, "save", version) for version in range(20)]
    found = run_ranks(3, num_epochs=2, faults=faults, on_save=saves.append)
    assert [report.point.epoch for report in saves] == [1, 2]
    assert [record["writer"] for record in kinds(found, "save")][:2] == [0, 1]


def test_the_last_save_is_repeated_by_another_rank(run_ranks):
    saves = []
    faults = [Fault(0, "save", version) for version in range(20)]
    found = run_ranks(3, faults=faults, on_save=saves.append)
    assert [report.value["version"] for report in saves] == [found.outcome.version]
    assert lost(found) == [0]


def test_a_stopped_rank_is_evicted_at_the_deadline_of_its_plan(run_ranks):
    found = run_ranks(3, faults=[Fault(1, "batch", 2, "stop")], suspicion=SHORT)
    (evicted,) = kinds(found, "evict")
    assert evicted["rank"] == 1
    assert "did not finish its batches" in evicted["reason"]


def test_a_rank_that_stops_in_a_reduction_is_evicted_and_the_others_repeat_it(run_ranks):
    found = run_ranks(3, faults=[Fault(1, "reduce", 1, "stop")], suspicion=SHORT)
    assert [record["rank"] for record in kinds(found, "evict")] == [1]
    assert max(record["attempt"] for record in kinds(found, "reduce")) == 1


def test_a_rank_that_cannot_be_killed_is_refused_when_it_wakes(run_ranks, launcher, tmp_path):
    """Its machine is unreachable, for example. It ends itself when it finds its connection closed."""
    started = []

    class Unkillable:
        def __init__(self, process):
            self.process = process
            self.pid, self.host, self.link = process.pid, process.host, process.link
            self.sentinel, self.exit_reason, self.close = (
                process.sentinel,
                process.exit_reason,
                process.close,
            )

        def kill(self):
            if self is not started[1]:
                self.process.kill()

    class Launcher:
        def start(self, spec):
            started.append(Unkillable(launcher.start(spec)))
            return started[-1]

    def wake(record):
        if record["kind"] == "evict":
            os.kill(started[1].pid, signal.SIGCONT)

    faults = [Fault(1, "batch", 2, "stop")]
    found = run_ranks(3, faults=faults, launcher=Launcher(), on_event=wake, suspicion=SHORT)
    assert [record["rank"] for record in kinds(found, "evict")] == [1]


@pytest.mark.parametrize("how", ["loss", "weights"])
def test_nan_on_one_rank_is_left_out_and_its_batches_are_trained_by_others(run_ranks, how, tmp_path):
    found = run_ranks(3, num_samples=400, poison={1: (how, 1)})
    (refused,) = kinds(found, "refuse")
    assert refused["rank"] == 1
    assert "nan" in refused["reason"]
    # It continues with the consensus and the optimizer state of another rank.
    assert (tmp_path / "received-1").exists()
    assert any(record["rank"] == 1 and record["plan"] > 2 for record in kinds(found, "plan"))


def test_the_error_of_a_rank_is_reported_with_rank_host_step_and_traceback(run_ranks, capfd):
    found = run_ranks(3, faults=[Fault(1, "batch", 1, "raise", skip=3)])
    (failure,) = found.outcome.failures
    assert (failure.rank, failure.step, failure.doing) == (1, 3, "training")
    assert failure.error == "RuntimeError: a fault was injected at 'batch' of window 1"
    printed = capfd.readouterr().err
    assert printed.index("rank 1 on ") < printed.index("Traceback") < printed.rindex("RuntimeError: a fault")
    assert "The run continues with 2 ranks." in printed


def test_the_first_failure_is_raised_if_no_rank_is_left(run_ranks):
    faults = [Fault(0, "batch", 1, "raise"), Fault(1, "batch", 1, "raise", skip=5)]
    with pytest.raises(
        DistributedError, match=r"The first failure, .* shown above:\nrank 0 on .* failed at step 0, training"
    ):
        run_ranks(2, faults=faults, batch_ms={1: 20.0})


def test_a_rank_that_exits_in_the_users_code_is_lost(run_ranks):
    found = run_ranks(2, faults=[Fault(1, "batch", 1, "exit")])
    assert lost(found) == [1]
    assert found.outcome.failures[0].error == "SystemExit: 3"


def test_a_rank_that_fails_before_the_start_ends_the_run(run_ranks):
    with pytest.raises(DistributedError, match="1 rank is left before the start, and the run needs 2"):
        run_ranks(2, faults=[Fault(1, "start", 0, "raise")])


def test_a_rank_that_does_not_start_in_time_ends_the_run(run_ranks):
    with pytest.raises(DistributedError, match=r"Rank 1: it did not start within 0.5 s"):
        run_ranks(2, faults=[Fault(1, "start", 0, "stop")], supervision={"start_s": 0.5})


def test_a_rank_that_starts_slowly_is_reported_while_the_others_wait(run_ranks, capfd):
    with pytest.raises(DistributedError, match=r"Rank 1: it did not start within 1 s"):
        run_ranks(2, faults=[Fault(1, "start", 0, "stop")], supervision={"start_s": 1.0, "slow_start_s": 0.2})
    printed = "".join(capfd.readouterr())
    assert re.search(
        r"rank 1 \(process \d+\) has not started after 0\.2 s\. It will be ended after 1 s\.", printed
    )


def test_lost_ranks_are_replaced(run_ranks):
    found = run_ranks(
        3, num_samples=600, batch_ms={0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0},
        faults=[Fault(1, "batch", 1)], supervision={"restarts": 1},
    )  # fmt: skip
    assert [record["rank"] for record in kinds(found, "started")] == [0, 1, 2, 3]


def test_a_rank_that_is_lost_from_outside_is_noticed_at_once(run_ranks):
    pids = {}

    def kill(record):
        if record["kind"] == "started":
            pids[record["rank"]] = record["pid"]
        if record["kind"] == "commit" and record["version"] == 2:
            threading.Timer(0.01, os.kill, (pids[2], signal.SIGKILL)).start()

    found = run_ranks(3, num_samples=800, on_event=kill)
    assert lost(found) == [2]
