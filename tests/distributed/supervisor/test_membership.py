"""Ranks that join and leave during a run."""

import os
import signal

import pytest

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow


# On a machine that is busy with other work, one rank may seem so slow that it would rest.
ALL_WORK = CadenceSettings(rest_margin=0.99)


def kinds(found, kind):
    return [record for record in found.records if record["kind"] == kind]


@pytest.fixture
def run_with_joiner(run_ranks, tmp_path):
    """Run ranks, and start another one after the first window; the second lasts until it joins."""

    def run(num_ranks, **options):
        supervisors = []
        gate = tmp_path / "joined"

        def on_commit(report):
            if report.commit.version == 2:
                supervisors[0].add_rank()

        def on_event(record):
            if record["kind"] == "joined" and record["rank"] == num_ranks:
                gate.touch()

        return run_ranks(
            num_ranks, on_start=supervisors.append, on_commit=on_commit, on_event=on_event, gate=(0, 1, gate),
            num_samples=800, coordinator={"cadence": ALL_WORK}, **options,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_a_rank_that_joins_receives_the_consensus_and_the_optimizer_state(
    run_with_joiner, tmp_path, max_ahead
):
    found = run_with_joiner(2, meeting={"max_ahead": max_ahead})
    assert any(record["rank"] == 2 and record["steps"] for record in kinds(found, "arrived"))
    (transfer,) = kinds(found, "transfer")
    assert transfer["rank"] == 2
    assert transfer["donor"] in (0, 1)
    assert int((tmp_path / "received-2").read_bytes()) > 0
    # It trains only after that.
    names = [(record["kind"], record.get("rank")) for record in found.records]
    assert names.index(("transfer", 2)) < names.index(("arrived", 2))


def test_a_slow_joiner_does_not_delay_the_others(run_ranks):
    supervisors = []

    def on_commit(report):
        if report.commit.version == 2:
            supervisors[0].add_rank()

    found = run_ranks(
        2, num_samples=800, on_start=supervisors.append, on_commit=on_commit,
        faults=[Fault(2, "start", 0, "sleep", ms=60_000.0)], supervision={"end_s": 0.1},
    )  # fmt: skip
    assert sorted(record["rank"] for record in kinds(found, "joined")) == [0, 1]


@pytest.mark.parametrize("point", ["reduce", "reported", "commit", "plan", "batch"])
def test_a_joiner_that_is_killed_at_once_leaves_the_others_alone(run_with_joiner, point):
    found = run_with_joiner(2, faults=[Fault(2, point, window) for window in range(40)])
    assert [record["rank"] for record in kinds(found, "lost")] == [2]


def test_a_rank_joins_in_the_window_in_which_another_is_killed(run_with_joiner):
    found = run_with_joiner(3, faults=[Fault(1, "reduce", 2)])
    assert [record["rank"] for record in kinds(found, "lost")] == [1]
    reduces = [record for record in kinds(found, "reduce") if record["window"] == 2]
    assert [record["members"] for record in reduces] == [[0, 1, 2, 3], [0, 2, 3]]


def test_a_rank_and_the_one_that_joins_are_killed_in_the_same_window(run_with_joiner):
    found = run_with_joiner(3, faults=[Fault(1, "reduce", 2), Fault(3, "reduce", 2)])
    assert sorted(record["rank"] for record in kinds(found, "lost")) == [1, 3]


def test_a_donor_that_is_killed_is_replaced_by_another(run_with_joiner, tmp_path):
    found = run_with_joiner(3, faults=[Fault(0, "donate", version) for version in range(60)])
    assert [record["donor"] for record in kinds(found, "transfer")] == [1]
    assert (tmp_path / "received-3").exists()


def test_without_a_donor_in_time_the_joiner_starts_without_optimizer_state(run_with_joiner, tmp_path):
    faults = [Fault(rank, "donate", version, "sleep", ms=400.0) for rank in (0, 1) for version in range(60)]
    found = run_with_joiner(2, faults=faults, supervision={"donate_s": 0.1})
    assert [record["donor"] for record in kinds(found, "transfer")] == [None]
    assert not (tmp_path / "received-2").exists()


def test_a_rank_that_is_asked_to_leave_commits_its_work_first(run_ranks):
    supervisors = []

    def on_commit(report):
        if report.commit.version == 2:
            supervisors[0].remove_rank(1)

    found = run_ranks(3, num_samples=1200, on_start=supervisors.append, on_commit=on_commit)
    (released,) = kinds(found, "release")
    assert released["rank"] == 1
    assert not kinds(found, "lost")
    assert ("ended", 1) in [(record["kind"], record.get("rank")) for record in found.records]


def test_all_first_ranks_are_replaced_one_by_one(run_ranks):
    supervisors, pids, seen = [], {}, []

    def on_event(record):
        seen.append((record["kind"], record.get("rank")))
        if record["kind"] == "started":
            pids[record["rank"]] = record["pid"]
        if seen[-1] == ("commit", None) and len(pids) == 2:
            pids[2] = pids[3] = None
            supervisors[0].add_rank()
            supervisors[0].add_rank()
        if seen[-1][0] == "arrived" and {("arrived", 2), ("arrived", 3)} <= set(seen):
            for rank, after in ((0, ("arrived", 3)), (1, ("lost", 0))):
                if after in seen and pids[rank]:
                    os.kill(pids[rank], signal.SIGKILL)
                    pids[rank] = None
                    return

    found = run_ranks(
        2, num_samples=6000, on_start=supervisors.append, on_event=on_event,
        coordinator={"cadence": CadenceSettings(growth=False)},
    )  # fmt: skip
    assert sorted(record["rank"] for record in kinds(found, "lost")) == [0, 1]
