"""Runs of real ranks without faults, and how a run ends."""

import os
import signal
import threading
import time

import pytest

from flodl.core import DistributedError
from flodl.distributed.coverage import Epochs
from flodl.distributed.ranks import Fault, Trained
from flodl.distributed.supervisor import LocalLauncher, RankSpec, Supervisor

pytestmark = pytest.mark.slow


def kinds(found, kind):
    return [record for record in found.records if record["kind"] == kind]


def test_every_position_is_committed_once_and_replicas_are_identical(run_ranks):
    commits, saves = [], []
    found = run_ranks(3, num_epochs=2, on_commit=commits.append, on_save=saves.append)
    outcome = found.outcome
    assert outcome.committed_batches == 120
    assert outcome.donated is not None
    assert sum(totals.steps for totals in outcome.ranks.values()) == 120
    assert sum(totals.samples for totals in outcome.ranks.values()) == 480
    assert [report.point.epoch for report in saves] == [1, 2]
    assert saves[-1].value["version"] == outcome.version
    assert [report.commit.version for report in commits] == list(range(1, outcome.version + 1))
    assert commits[-1].metrics == {"one": 1.0}
    assert outcome.epochs == {0: {"loss": 1.0, "one": 1.0}, 1: {"loss": 1.0, "one": 1.0}}


def test_ranks_of_unequal_speed_get_batches_by_their_speed(run_ranks):
    found = run_ranks(3, num_samples=1200, batch_ms={0: 1.0, 1: 1.0, 2: 4.0})
    steps = {rank: totals.steps for rank, totals in found.outcome.ranks.items()}
    assert steps[2] < steps[0]
    assert steps[2] < steps[1]


def test_a_last_batch_that_is_smaller_is_trained_too(run_ranks):
    assert run_ranks(2, num_samples=101).outcome.committed_batches == 26


def test_the_order_of_the_run_log_tells_what_each_rank_did(run_ranks):
    found = run_ranks(2)
    started = {record["rank"] for record in kinds(found, "started")}
    assert started == {record["rank"] for record in kinds(found, "joined")} == {0, 1}
    for record in kinds(found, "arrived"):
        assert record["took_ms"] >= record["compute_ms"] > 0.0
    for record in kinds(found, "reduced"):
        assert record["num_bytes"] > 0
    assert found.records[-1]["kind"] == "ended"


def least_squares(num_samples, batch_size):
    """A worker with a real model and optimizer, and the same training in a plain loop."""

    class LeastSquares:
        def __init__(self, info):
            import torch

            from flodl.distributed.reduction import FlatState

            generator = torch.Generator().manual_seed(0)
            self.inputs = torch.randn(num_samples, 5, generator=generator)
            truth = torch.arange(5.0)
            self.targets = self.inputs @ truth
            self.model = torch.nn.Linear(5, 1)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.zero_()
            self.state = FlatState.of(self.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

        def step(self, first, last):
            self.optimizer.zero_grad()
            outputs = self.model(self.inputs[first:last]).squeeze(1)
            loss = (outputs - self.targets[first:last]).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.item()

        def train(self, lease, position, *, should_stop):
            started, steps, total = time.perf_counter(), 0, 0.0
            for start, stop in lease.ranges:
                for first in range(start, stop, batch_size):
                    if should_stop():
                        break
                    total += self.step(first, min(first + batch_size, stop))
                    steps += 1
            took_ms = 1000.0 * (time.perf_counter() - started)
            return Trained(steps, took_ms, loss=total / max(1, steps))

        def donate(self):
            return b""

        def receive(self, donated):
            pass

        def save(self, point, consensus, outer, coordinator):
            return None

    return LeastSquares


def test_a_world_of_one_equals_the_plain_loop_bit_for_bit(run_ranks):
    import torch

    make = least_squares(300, 7)
    found = run_ranks(1, num_samples=300, batch_size=7, num_epochs=2, make=make, check=False)
    plain = make(None)
    for _ in range(2):
        for first in range(0, 300, 7):
            plain.step(first, min(first + 7, 300))
    assert torch.equal(found.outcome.consensus, plain.state.read(plain.state.empty()))


def test_three_ranks_find_the_solution(run_ranks):
    found = run_ranks(3, num_samples=600, num_epochs=4, make=least_squares(600, 8), check=False)
    assert found.outcome.consensus[:5].tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0], abs=0.05)
    assert found.outcome.epochs[3]["loss"] < found.outcome.epochs[0]["loss"]


def test_on_save_can_stop_the_run_early(run_ranks):
    found = run_ranks(2, num_epochs=5, on_save=lambda report: report.point.epoch == 2, check=False)
    assert found.outcome.status == "stopped"
    assert found.outcome.reason == f"on_save asked for it at version {found.outcome.version}"
    assert found.outcome.consensus.sum() > 0.0
    # No rank trained on after that save.
    assert found.outcome.committed_batches == 120


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_a_run_that_is_stopped_returns_the_last_version(run_ranks, max_ahead):
    supervisors = []

    def on_commit(report):
        if report.commit.version == 3:
            supervisors[0].stop("enough")

    found = run_ranks(
        2, num_samples=4000, on_start=supervisors.append, on_commit=on_commit, check=False,
        meeting={"max_ahead": max_ahead},
    )  # fmt: skip
    assert (found.outcome.status, found.outcome.reason) == ("stopped", "enough")
    assert found.outcome.consensus.sum() > 0.0


def test_the_consensus_comes_from_another_rank_if_one_does_not_answer(run_ranks):
    """Rank 0 stops right after its last save."""
    supervisors = []

    def on_save(report):
        os.kill(pids[0], signal.SIGSTOP)

    pids = {}

    def on_event(record):
        if record["kind"] == "started":
            pids[record["rank"]] = record["pid"]

    run_ranks(
        2, on_start=supervisors.append, on_save=on_save, on_event=on_event,
        supervision={"fetch_s": 0.4, "end_s": 0.2},
    )  # fmt: skip


def test_another_thread_can_stop_a_run(run_ranks):
    supervisors = []

    def start(supervisor):
        supervisors.append(supervisor)
        threading.Timer(0.3, supervisor.stop).start()

    found = run_ranks(2, num_samples=40_000, on_start=start, check=False)
    assert found.outcome.status == "stopped"


def test_ctrl_c_ends_all_ranks(run_ranks, tmp_path):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(2, num_samples=40_000, faults=[Fault(1, "batch", 1, "stop")])


def test_an_error_in_a_callback_ends_all_ranks(run_ranks, is_running):
    pids = []

    def on_event(record):
        if record["kind"] == "started":
            pids.append(record["pid"])

    def on_commit(report):
        raise ValueError("from the callback")

    with pytest.raises(ValueError, match="from the callback"):
        run_ranks(2, on_commit=on_commit, on_event=on_event)
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_children_of_a_rank_end_with_it(run_ranks, counting_worker, is_running, tmp_path):
    Counting = counting_worker(num_samples=240)

    class WithChild(Counting):
        def __init__(self, info):
            import subprocess

            super().__init__(info)
            child = subprocess.Popen(["sleep", "100"])
            (tmp_path / f"child-{info.rank}").write_text(str(child.pid))

    run_ranks(2, make=WithChild, faults=[Fault(1, "batch", 1)])
    children = [int(path.read_text()) for path in tmp_path.glob("child-*")]
    assert len(children) == 2
    # They are killed, and the kernel needs a moment for that.
    deadline_s = time.monotonic() + 30.0
    while any(map(is_running, children)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(is_running, children))


def test_what_cannot_be_pickled_is_refused_before_a_rank_starts():
    lock = threading.Lock()
    with pytest.raises(DistributedError, match="cannot be sent to other processes: TypeError"):
        Supervisor(lambda info: lock, ranks=[RankSpec()], epochs=Epochs(num_samples=8, batch_size=4))


def test_too_few_ranks_are_refused(run_ranks):
    with pytest.raises(DistributedError, match="2 ranks are given, and the run starts with 3"):
        run_ranks(2, coordinator={"start_ranks": 3})


def test_a_worker_that_returns_something_else_is_named(run_ranks, counting_worker):
    class Wrong(counting_worker(num_samples=240)):
        def train(self, lease, position, *, should_stop):
            return lease.batches

    with pytest.raises(DistributedError, match=r"Worker\.train returned int, expected Trained"):
        run_ranks(1, make=Wrong)


def test_ranks_are_started_as_processes(run_ranks):
    """With the real launcher, which needs seconds because each rank imports torch."""
    found = run_ranks(2, launcher=LocalLauncher(), faults=[Fault(1, "batch", 2, "exit")], num_samples=400)
    assert found.outcome.failures[0].error == "SystemExit: 3"


def test_the_real_launcher_reports_the_signal_that_ended_a_rank(run_ranks):
    found = run_ranks(2, launcher=LocalLauncher(), faults=[Fault(1, "batch", 1)], num_samples=400)
    assert [record["reason"] for record in kinds(found, "lost")] == ["its process was killed by SIGKILL"]
