"""Real ranks for tests, forked from a process that has imported torch already: that takes seconds."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from flodl.distributed.coordination import CoordinatorSettings, MeetingSettings, SuspicionSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.supervisor import RankSpec, Supervisor, SupervisorSettings, read_log

from ..forked_ranks import ForkLauncher

# The first optimizer imports a lot.
WARM_UP = """
import flodl.distributed.reduction
torch.optim.SGD([torch.zeros(1)], lr=0.1)
"""


@pytest.fixture(scope="session")
def launcher():
    found = ForkLauncher(WARM_UP)
    yield found
    found.close()


@pytest.fixture(scope="session")
def counting_worker():
    """Return a factory of workers whose weights count: each position that is trained adds 1 to its weight.

    So the consensus tells exactly which positions are in it, and with which weight. A rank waits in the plan
    that `gate` names (rank, plans before it, path) until the file exists.
    """

    def make(*, num_samples, batch_size=4, batch_ms=None, poison=None, folder=None, initial=None, gate=None):
        batch_ms, poison = batch_ms or {}, poison or {}

        class CountingWorker:
            def __init__(self, info):
                import torch

                from flodl.distributed.reduction import FlatState

                self.rank = info.rank
                self.weights = torch.zeros(num_samples) if initial is None else torch.tensor(initial)
                self.state = FlatState([self.weights])
                self.optimizer_steps, self.num_leases = 0, 0

            def train(self, lease, position, *, should_stop):
                from flodl.distributed.ranks import Trained

                started, steps, samples = time.perf_counter(), 0, 0
                if gate and (self.rank, self.num_leases) == gate[:2]:
                    while not gate[2].exists():
                        time.sleep(0.001)
                for start, stop in lease.ranges:
                    for first in range(start, stop, batch_size):
                        if should_stop():
                            return self.result(started, steps, samples)
                        time.sleep(batch_ms.get(self.rank, 1.0) / 1000.0)
                        last = min(first + batch_size, stop)
                        self.weights[first:last] += 1.0
                        steps += 1
                        samples += last - first
                self.optimizer_steps += steps
                self.num_leases += 1
                if poison.get(self.rank) == ("weights", self.num_leases):
                    self.weights[0] = float("nan")
                trained = self.result(started, steps, samples)
                if poison.get(self.rank) == ("loss", self.num_leases):
                    trained = Trained(steps, trained.compute_ms, loss=float("nan"))
                return trained

            def result(self, started, steps, samples):
                from flodl.distributed.ranks import Trained

                took_ms = 1000.0 * (time.perf_counter() - started)
                return Trained(steps, took_ms, loss=1.0, metrics={"one": (float(samples), float(samples))})

            def donate(self):
                return str(self.optimizer_steps).encode()

            def receive(self, donated):
                self.optimizer_steps = int(donated)
                if folder:
                    (folder / f"received-{self.rank}").write_bytes(donated)

            def save(self, point, consensus, outer, coordinator):
                if folder:
                    part = folder / f"save-{self.rank}.part"
                    saved = {"version": point.version, "weights": consensus.tolist(), "state": coordinator}
                    part.write_text(json.dumps(saved))
                    part.rename(folder / "save.json")
                return {"version": point.version, "sum": float(consensus.sum())}

        return CountingWorker

    return make


@pytest.fixture(name="is_running", scope="session")
def is_running_fixture():
    return is_running


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.fixture(name="check_coverage", scope="session")
def check_coverage_fixture():
    return check_coverage


@pytest.fixture(name="expected_weights", scope="session")
def expected_weights_fixture():
    return expected_weights


def check_coverage(records, *, num_samples, epochs=(0,)):
    """Each position of each epoch is committed exactly once."""
    for epoch in epochs:
        ranges = [
            each
            for record in records
            if record["kind"] == "commit"
            for _, found, _, ranges in record["work"]
            if found == epoch
            for each in ranges
        ]
        positions = [position for start, stop in ranges for position in range(start, stop)]
        assert sorted(positions) == list(range(num_samples)), f"epoch {epoch}"


def expected_weights(records, *, num_samples, start=None):
    """The consensus that follows from the committed work, in float64."""
    weights = list(start) if start is not None else [0.0] * num_samples
    scale = 1.0
    for record in records:
        if record["kind"] == "reduce":
            scale = record["scale"]
        if record["kind"] != "commit" or not record["batches"]:
            continue
        steps = {}
        for rank, _, batches, _ in record["work"]:
            steps[rank] = steps.get(rank, 0) + batches
        for rank, _, _, ranges in record["work"]:
            for first, last in ranges:
                for position in range(first, last):
                    weights[position] += scale * steps[rank] / record["batches"]
    return weights


def check_replicas(records):
    """All ranks that adopted a version have the same bits."""
    digests = {}
    for record in records:
        if record["kind"] == "adopted":
            digests.setdefault(record["version"], set()).add(record["digest"])
    assert digests
    assert all(len(found) == 1 for found in digests.values()), digests


@pytest.fixture
def run_ranks(launcher, counting_worker, tmp_path):
    """Run ranks with short deadlines, and check what must hold for every run."""
    log = tmp_path / "run.jsonl"

    def run(
        num_ranks=3, *, num_samples=240, batch_size=4, num_epochs=1, batch_ms=None, poison=None, faults=(),
        on_start=None, check=True, gate=None, meeting=None, suspicion=None, supervision=None, make=None,
        start=None, **options,
    ):  # fmt: skip
        worker = make or counting_worker(
            num_samples=num_samples,
            batch_size=batch_size,
            batch_ms=batch_ms,
            poison=poison,
            folder=tmp_path,
            initial=start,
            gate=gate,
        )
        coordinator = options.pop("coordinator", {})
        coordinator.setdefault("start_ranks", num_ranks)
        settings = CoordinatorSettings(
            meeting=MeetingSettings(**(meeting or {})),
            suspicion=SuspicionSettings(
                **{"floor_ms": 8000.0, "unknown_ms": 9000.0, "first_reduce_ms": 9000.0, "answer_ms": 1000.0}
                | (suspicion or {})
            ),
            **coordinator,
        )
        supervisor = Supervisor(
            worker,
            ranks=[RankSpec()] * num_ranks,
            epochs=Epochs(num_samples=num_samples, batch_size=batch_size, num_epochs=num_epochs),
            settings=settings,
            supervision=SupervisorSettings(
                **{"digests": True, "start_s": 20.0, "end_s": 5.0, "beat_s": 0.1, "silence_s": 1.0}
                | (supervision or {})
            ),
            launcher=options.pop("launcher", launcher),
            run_log=log,
            faults=faults,
            **options,
        )  # fmt: skip
        if on_start is not None:
            on_start(supervisor)
        outcome = supervisor.run()
        records = read_log(log)
        pids = [record["pid"] for record in records if record["kind"] == "started"]
        assert not [pid for pid in pids if is_running(pid)], "a process outlives its run"
        if check:
            assert outcome.status == "finished"
            check_coverage(records, num_samples=num_samples, epochs=range(num_epochs))
            check_replicas(records)
            expected = expected_weights(records, num_samples=num_samples, start=start)
            assert outcome.consensus.tolist() == pytest.approx(expected, abs=1e-4)
            assert outcome.epochs[num_epochs - 1]["one"] == 1.0
        return SimpleNamespace(outcome=outcome, records=records, log=log)

    return run
