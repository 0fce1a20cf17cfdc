"""Real ranks that are late: those that live stay in the run, whatever their deadlines say."""

import os
import signal
import time

import pytest

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow

# All of these are over long before a rank that sleeps continues.
SHORT = {"floor_ms": 600.0, "answer_ms": 100.0, "again_ms": 50.0}
# A rank that trains ahead has no plan in some windows.
WINDOWS = (2, 3)


def evicted(found):
    return [record["rank"] for record in found.records if record["kind"] == "evict"]


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_nobody_is_evicted_if_all_ranks_become_slow_at_once(run_ranks, max_ahead):
    faults = [Fault(rank, "batch", window, "sleep", ms=100.0) for rank in range(3) for window in WINDOWS]
    found = run_ranks(3, num_samples=320, faults=faults, suspicion=SHORT, meeting={"max_ahead": max_ahead})
    assert evicted(found) == []


def test_nobody_is_evicted_if_the_whole_machine_stands_still(run_ranks):
    pids = {}

    def stand_still(record):
        if record["kind"] == "started":
            pids[record["rank"]] = record["pid"]
        # The other two are at work.
        if record["kind"] == "arrived" and record["plan"] == 3:
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
            time.sleep(2.0)
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)

    found = run_ranks(
        3, num_samples=800, batch_ms={1: 4.0, 2: 4.0}, suspicion=SHORT, on_event=stand_still,
        coordinator={"cadence": CadenceSettings(anchor=20, growth=False)},
    )  # fmt: skip
    assert evicted(found) == []


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_a_stopped_rank_is_evicted_while_others_are_late(run_ranks, max_ahead):
    faults = [Fault(rank, "batch", window, "sleep", ms=100.0) for rank in (0, 2) for window in WINDOWS]
    faults += [Fault(1, "batch", window, "stop") for window in WINDOWS]
    found = run_ranks(3, num_samples=320, faults=faults, suspicion=SHORT, meeting={"max_ahead": max_ahead})
    assert evicted(found) == [1]


def test_a_rank_that_lives_and_does_not_continue_is_evicted(run_ranks):
    faults = [Fault(1, "batch", 2, "sleep", ms=20_000.0)]
    found = run_ranks(3, faults=faults, suspicion=SHORT, supervision={"stuck_s": 1.0})
    assert evicted(found) == [1]


def test_a_reduction_that_a_late_rank_enters_after_the_timeout_is_repeated_with_it(run_ranks):
    faults = [Fault(1, "reduce", 2, "sleep", ms=800.0)]
    found = run_ranks(3, num_samples=400, faults=faults, suspicion=SHORT)
    assert evicted(found) == []
    reduces = [record for record in found.records if record["kind"] == "reduce" and record["window"] == 2]
    assert all(1 in record["members"] for record in reduces)
