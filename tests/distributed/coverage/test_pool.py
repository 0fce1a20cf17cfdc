"""Each position of an epoch is committed exactly once, whatever happens to the ranks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core import DistributedError
from flodl.distributed.coverage import ChunkPool

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["grant", "grant", "commit", "commit", "part", "late", "lose", "save", "resume"]),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=60,
)


class Model:
    """Applies actions to a pool, and counts how often every position was committed."""

    def __init__(self, pool):
        self.pool = pool
        self.times = [0] * pool.total
        self.open, self.dead = [], []
        self.window = 0

    def act(self, action, rank, number):
        self.window += 1
        if action == "grant":
            lease = self.pool.grant(rank, window=self.window, batches=number)
            if lease:
                self.open.append(lease)
        elif action in ("commit", "part", "late") and self.open:
            # A late commit is that of a lease other than the oldest.
            lease = self.open.pop(number % len(self.open) if action == "late" else 0)
            self.commit(lease, min(number, lease.batches) if action == "part" else lease.batches)
        elif action == "lose":
            gone = set(self.pool.give_back_rank(rank))
            self.dead += [each for each in self.open if each.ticket in gone]
            self.open = [each for each in self.open if each.ticket not in gone]
        elif action == "save":
            self.pool = ChunkPool.from_state(json.loads(json.dumps(self.pool.state())))
        elif action == "resume":
            state = json.loads(json.dumps(self.pool.state()))
            self.pool = ChunkPool.from_state(state, keep_leases=False)
            self.dead += self.open
            self.open = []

    def commit(self, lease, batches):
        positions = [each for start, stop in lease.ranges for each in range(start, stop)]
        done = positions[: batches * self.pool.batch_size] if batches < lease.batches else positions
        assert self.pool.commit(lease.ticket, batches) == len(done)
        for each in done:
            self.times[each] += 1

    def check(self):
        assert max(self.times) <= 1
        covered = {each for start, stop in self.pool.committed for each in range(start, stop)}
        assert covered == {each for each, times in enumerate(self.times) if times}
        size, leased = self.pool.batch_size, sum(lease.batches for lease in self.pool.leases)
        committed = -(-sum(self.times) // size)
        assert committed + leased + self.pool.free_batches == self.pool.num_batches
        for lease in self.dead:
            assert not self.pool.holds(lease.ticket)
            with pytest.raises(DistributedError, match="is not open"):
                self.pool.commit(lease.ticket)

    def finish(self):
        self.pool = ChunkPool.from_state(self.pool.state(), keep_leases=False)
        while lease := self.pool.grant(0, window=0, batches=3):
            self.commit(lease, lease.batches)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 60), st.integers(1, 7), ACTIONS)
def test_each_position_is_committed_exactly_once_under_any_sequence_of_events(total, batch_size, actions):
    model = Model(ChunkPool(total, batch_size=batch_size))
    for action in actions:
        model.act(*action)
        model.check()
    model.finish()
    assert model.times == [1] * total
    assert model.pool.is_complete
    assert list(model.pool.committed) == [(0, total)]


@pytest.mark.parametrize("remainder", range(8))
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_ends_for_every_remainder_of_the_batch_size(remainder, drop_last):
    pool = ChunkPool(64 + remainder, batch_size=8, drop_last=drop_last)
    for window in range(100):
        leases = [pool.grant(rank, window=window, batches=3) for rank in range(3)]
        for lease in filter(None, leases):
            pool.commit(lease.ticket)
        if pool.is_complete:
            break
    assert pool.is_complete
    assert list(pool.committed) == [(0, 64 if drop_last else 64 + remainder)]


def test_positions_stay_in_their_batch_when_another_rank_trains_them():
    pool = ChunkPool(30, batch_size=8)
    lost, _ = pool.grant(0, window=0, batches=3), pool.grant(1, window=0, batches=1)
    pool.give_back(lost.ticket)
    assert [pool.grant(2, window=1, batches=1).ranges for _ in range(3)] == [
        ((0, 8),), ((8, 16),), ((16, 24),),
    ]  # fmt: skip


def test_the_batches_that_a_rank_did_not_reach_go_back():
    pool = ChunkPool(40, batch_size=4)
    lease = pool.grant(0, window=0, batches=10)
    assert pool.commit(lease.ticket, 7) == 28
    assert pool.free_batches == 3
    assert pool.grant(1, window=1, batches=9).ranges == ((28, 40),)


def test_a_commit_of_more_batches_than_leased_is_refused_and_changes_nothing():
    pool = ChunkPool(40, batch_size=4)
    lease = pool.grant(3, window=0, batches=2)
    with pytest.raises(DistributedError, match="rank 3 trained 3 batches of a lease of 2"):
        pool.commit(lease.ticket, 3)
    assert pool.commit(lease.ticket) == 8


def test_an_epoch_resumes_on_another_number_of_ranks_in_the_middle():
    pool = ChunkPool(100, batch_size=4)
    leases = [pool.grant(rank, window=0, batches=4) for rank in range(5)]
    for lease in leases[1:3]:
        pool.commit(lease.ticket)
    pool = ChunkPool.from_state(json.loads(json.dumps(pool.state())), keep_leases=False)
    assert list(pool.committed) == [(16, 48)]
    seen = [(16, 48)]
    while lease := pool.grant(len(seen) % 2, window=1, batches=3):
        pool.commit(lease.ticket)
        seen += lease.ranges
    assert sorted(each for start, stop in seen for each in range(start, stop)) == list(range(100))


def test_an_epoch_without_a_batch_is_an_error():
    with pytest.raises(DistributedError, match="an epoch of 3 samples has no batch of 4"):
        ChunkPool(3, batch_size=4, drop_last=True)
    with pytest.raises(DistributedError, match="at 'batch_size': expected an integer of at least 1, got 0"):
        ChunkPool(3, batch_size=0)
