"""Random faults in random runs: whatever happens, each position is committed once or the run says why not."""

import random

import pytest

from flodl.core import DistributedError
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow

POINTS = ("plan", "batch", "arrive", "reduce", "reduced", "reported", "commit", "adopted", "donate", "save")
MEETINGS = (
    {},
    {"quorum": 0.6, "max_grace": 0.1},
    {"max_ahead": 1},
    {"max_ahead": 2, "quorum": 0.5, "max_grace": 0.2, "max_staleness": 2},
)


def random_faults(rng, num_ranks):
    faults = []
    for _ in range(rng.randint(0, 3)):
        action = rng.choice(("kill", "kill", "kill", "raise", "sleep", "stop"))
        skip = rng.randint(0, 8)
        point, window = rng.choice(POINTS), rng.randint(0, 8)
        faults.append(Fault(rng.randint(0, num_ranks + 1), point, window, action, skip % 3, ms=30.0))
    return faults


@pytest.mark.parametrize("seed", range(8))
def test_random_faults(run_ranks, seed):
    rng = random.Random(seed)
    num_ranks = rng.randint(1, 4)
    faults = random_faults(rng, num_ranks)
    joins = {rng.randint(1, 6) for _ in range(rng.randint(0, 2))}
    leaves = {rng.randint(2, 8): rng.randint(0, num_ranks) for _ in range(rng.randint(0, 1))}
    supervisors = []

    def on_commit(report):
        if report.commit.version in joins:
            supervisors[0].add_rank()
        if report.commit.version in leaves:
            supervisors[0].remove_rank(leaves[report.commit.version])

    poison = {rng.randint(0, num_ranks): (rng.choice(("loss", "weights")), 2)} if rng.random() < 0.3 else {}
    num_samples = rng.choice((403, 1200))
    num_epochs = rng.randint(1, 2)
    problem = ""
    try:
        run_ranks(
            num_ranks, num_samples=num_samples, num_epochs=num_epochs, faults=faults, poison=poison,
            meeting=rng.choice(MEETINGS), batch_ms={rank: rng.choice((0.5, 1.0, 3.0)) for rank in range(6)},
            on_start=supervisors.append, on_commit=on_commit, coordinator={"save_every": rng.choice((0, 2))},
            suspicion={"floor_ms": 1000.0, "unknown_ms": 2000.0, "first_reduce_ms": 4000.0},
        )  # fmt: skip
    except DistributedError as error:
        problem = str(error)
    # The run ends early only if all ranks that held the current version were lost.
    known = ("", "no remaining rank", " left", "no usable weights")
    assert any(words in problem if words else not problem for words in known)
