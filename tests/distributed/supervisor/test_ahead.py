"""Ranks that train on while a reduction runs, and meetings that do not wait for everybody."""

from itertools import pairwise

import pytest

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow


def kinds(found, kind):
    return [record for record in found.records if record["kind"] == kind]


AHEAD = {"max_ahead": 1}
LOOSE = {"max_ahead": 1, "quorum": 0.6, "max_grace": 0.1}


@pytest.mark.parametrize("meeting", [AHEAD, {"max_ahead": 3}, LOOSE])
def test_ranks_of_unequal_speed_train_ahead_and_no_step_is_lost(run_ranks, meeting):
    found = run_ranks(3, num_samples=1200, num_epochs=2, batch_ms={0: 1.0, 1: 1.0, 2: 4.0}, meeting=meeting)
    reduces = [record for record in found.records if record["kind"] in ("reduce", "commit", "arrived")]
    # Some rank arrives while a reduction is in progress.
    assert any(one["kind"] == "reduce" and other["kind"] == "arrived" for one, other in pairwise(reduces))


@pytest.mark.parametrize("meeting", [AHEAD, LOOSE])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("point", "window"), [("batch", 2), ("arrive", 2), ("reduce", 2), ("reduced", 2), ("commit", 2)]
)
def test_a_rank_that_is_killed_costs_its_unfinished_work_only(run_ranks, meeting, point, window, rank):
    faults = [Fault(rank, point, window)]
    run_ranks(3, num_samples=800, batch_ms={0: 1.0, 1: 1.0, 2: 3.0}, meeting=meeting, faults=faults)


@pytest.mark.parametrize("how", ["loss", "weights"])
def test_nan_is_left_out(run_ranks, how):
    found = run_ranks(3, num_samples=800, meeting=AHEAD, poison={1: (how, 2)})
    assert [record["rank"] for record in kinds(found, "refuse")] == [1]


@pytest.fixture
def run_with_late_rank(run_ranks, tmp_path):
    """Rank 2 is at work in its first plan until this version is committed by the others."""

    def run(until, **meeting):
        gate = tmp_path / "late"

        def on_commit(report):
            if report.commit.version == until:
                gate.touch()

        return run_ranks(
            3, num_samples=3200, gate=(2, 0, gate), on_commit=on_commit,
            meeting={"quorum": 0.6, "max_grace": 0.05, **meeting},
            coordinator={"cadence": CadenceSettings(growth=False, rest_margin=0.99)},
        )  # fmt: skip

    return run


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_a_late_rank_brings_its_work_to_a_later_window(run_with_late_rank, max_ahead):
    found = run_with_late_rank(4, max_staleness=100, max_ahead=max_ahead)
    assert any(2 in record["late"] for record in kinds(found, "commit"))
    assert any(len(set(record["bases"])) > 1 for record in kinds(found, "reduce")[1:])


@pytest.mark.parametrize("max_ahead", [0, 1])
def test_work_that_is_too_old_is_refused_and_trained_by_others(run_with_late_rank, max_ahead):
    found = run_with_late_rank(6, max_staleness=1, max_ahead=max_ahead)
    assert any("versions ago" in record["reason"] for record in kinds(found, "refuse"))


def test_an_error_in_the_thread_of_reductions_is_reported(run_ranks):
    found = run_ranks(3, num_samples=800, meeting=AHEAD, faults=[Fault(1, "reduce", 2, "raise")])
    assert [failure.rank for failure in found.outcome.failures] == [1]
