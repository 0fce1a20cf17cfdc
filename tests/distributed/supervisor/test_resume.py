"""A supervisor that is killed, and the run that continues from its last save point."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from flodl.core import DistributedError
from flodl.distributed.supervisor import read_journal, read_log

pytestmark = pytest.mark.slow

NUM_SAMPLES = 6000
SCRIPT = """
import json, pathlib, sys, time
import torch
from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import CoordinatorSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.ranks import Trained
from flodl.distributed.reduction import FlatState
from flodl.distributed.supervisor import RankSpec, supervise

folder = pathlib.Path(sys.argv[1])

class Worker:
    def __init__(self, info):
        self.weights = torch.zeros({num_samples})
        self.state = FlatState([self.weights])
        self.rank = info.rank
    def train(self, lease, position, *, should_stop):
        steps = 0
        for start, stop in lease.ranges:
            for first in range(start, stop, 4):
                if should_stop():
                    break
                time.sleep(0.001)
                self.weights[first:min(first + 4, stop)] += 1.0
                steps += 1
        return Trained(steps, 1.0 * steps, loss=1.0)
    def donate(self):
        return b""
    def receive(self, donated):
        pass
    def save(self, point, consensus, outer, coordinator):
        part = folder / f"save-{{self.rank}}.part"
        saved = {{"version": point.version, "weights": consensus.tolist(), "state": coordinator}}
        part.write_text(json.dumps(saved))
        part.rename(folder / "save.json")

supervise(
    Worker,
    ranks=[RankSpec(), RankSpec()],
    epochs=Epochs(num_samples={num_samples}, batch_size=4),
    settings=CoordinatorSettings(start_ranks=2, save_every=3, cadence=CadenceSettings(growth=False)),
    journal=folder / "journal.jsonl",
    run_log=folder / "first.jsonl",
)
print("it was not ended")
"""


@pytest.fixture
def end_supervisor(tmp_path, is_running):
    """Start a run in another process, and send a signal to its supervisor during a window."""

    def end(number):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(num_samples=NUM_SAMPLES))
        process = subprocess.Popen([sys.executable, script, tmp_path])
        log = tmp_path / "first.jsonl"
        while not (log.exists() and sum(record["kind"] == "saved" for record in read_log(log)) >= 2):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.05)
        process.send_signal(number)
        code = process.wait(20)
        pids = [record["pid"] for record in read_log(log) if record["kind"] == "started"]
        while any(map(is_running, pids)):
            time.sleep(0.01)
        return code

    return end


def test_a_run_continues_after_its_supervisor_was_killed(
    run_ranks, end_supervisor, tmp_path, check_coverage, expected_weights
):
    assert end_supervisor(signal.SIGKILL) == -signal.SIGKILL
    recovery = read_journal(tmp_path / "journal.jsonl")
    saved = json.loads((tmp_path / "save.json").read_text())
    # A save point that was written but not confirmed is newer than the journal's.
    assert recovery.saved_version <= saved["version"] <= recovery.reached_version
    before = [
        record
        for record in read_log(tmp_path / "first.jsonl")
        if record["kind"] == "commit" and record["version"] <= saved["version"]
    ]
    found = run_ranks(
        3, num_samples=NUM_SAMPLES, resume_state=saved["state"], start=saved["weights"], check=False,
        journal=tmp_path / "journal.jsonl",
    )  # fmt: skip
    assert found.outcome.status == "finished"
    records = [*before, *(record for record in found.records if record["kind"] == "commit")]
    check_coverage(records, num_samples=NUM_SAMPLES)
    expected = expected_weights(records, num_samples=NUM_SAMPLES)
    assert found.outcome.consensus.tolist() == pytest.approx(expected, abs=1e-4)
    assert found.outcome.committed_batches == NUM_SAMPLES // 4
    assert read_journal(tmp_path / "journal.jsonl").lost_batches == 0


def test_sigterm_to_the_supervisor_ends_all_ranks(end_supervisor):
    assert end_supervisor(signal.SIGTERM) == -signal.SIGTERM


def test_a_stopped_run_continues_with_another_number_of_ranks(run_ranks, tmp_path, check_coverage):
    first = run_ranks(
        3, num_samples=400, num_epochs=3, check=False, on_save=lambda report: report.point.epoch == 1
    )
    saved = json.loads((tmp_path / "save.json").read_text())
    os.rename(first.log, tmp_path / "first.jsonl")
    second = run_ranks(
        2, num_samples=400, num_epochs=3, check=False, resume_state=saved["state"], start=saved["weights"]
    )
    assert second.outcome.committed_batches == 300
    check_coverage([*first.records, *second.records], num_samples=400, epochs=range(3))


def test_a_save_point_of_other_data_is_refused(run_ranks, tmp_path):
    state = run_ranks(2, num_samples=240).outcome.state
    with pytest.raises(
        DistributedError, match=r"at 'epochs\.num_samples': the save point has num_samples 240"
    ):
        run_ranks(2, num_samples=244, resume_state=state)


def test_a_finished_run_continues_for_more_epochs(run_ranks, tmp_path, check_coverage):
    first = run_ranks(2, num_samples=240, num_epochs=2)
    weights = first.outcome.consensus.tolist()
    os.rename(first.log, tmp_path / "first.jsonl")
    second = run_ranks(
        3, num_samples=240, num_epochs=3, resume_state=first.outcome.state, start=weights, check=False
    )
    assert second.outcome.committed_batches == 180
    check_coverage([*first.records, *second.records], num_samples=240, epochs=range(3))


def test_a_journal_of_another_run_is_not_overwritten(run_ranks, tmp_path):
    path = tmp_path / "journal.jsonl"
    run_ranks(2, journal=path)
    assert read_journal(path).lost_batches == 0
    with pytest.raises(DistributedError, match="is the journal of an earlier run"):
        run_ranks(2, journal=path)
