"""Batches are split so that the last rank finishes as early as possible."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.distributed.cadence import makespan, shares


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_no_other_split_finishes_earlier(batches, speeds, data):
    ms = {rank: float(each) for rank, each in enumerate(speeds)}
    most = {rank: data.draw(st.integers(1, 7)) for rank in ms if data.draw(st.booleans())}
    found = shares(batches, ms, max_batches=most)
    possible = [
        dict(zip(ms, counts))
        for counts in product(range(batches + 1), repeat=len(ms))
        if sum(counts) == sum(found.values())
        and all(count <= most.get(rank, batches) for rank, count in zip(ms, counts))
    ]
    assert found in possible
    assert makespan(found, ms) == min(makespan(each, ms) for each in possible)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1e5), min_size=1, max_size=40))
def test_every_batch_is_given_to_a_rank(batches, speeds):
    assert sum(shares(batches, dict(enumerate(speeds))).values()) == batches


def test_full_ranks_leave_their_batches_to_others():
    assert shares(1000, {0: 1.0, 1: 1.0, 2: 1.0}, max_batches={0: 10, 1: 20}) == {0: 10, 1: 20, 2: 970}
    assert shares(1000, {0: 1.0, 1: 1.0}, max_batches={0: 10, 1: 20}) == {0: 10, 1: 20}
