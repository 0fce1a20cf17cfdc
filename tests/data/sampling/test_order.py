"""The order is a pure function of seed, epoch and position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flodl.data.sampling.order import mix, permutation, sample_keys, spans, stream_key


@given(st.integers(1, 500), st.integers(0, 2**40), st.integers(0, 1000))
def test_every_sample_occurs_once(count, seed, epoch):
    order = permutation(count, seed=seed, epoch=epoch)
    assert order.sort().values.tolist() == list(range(count))
    assert torch.equal(order, permutation(count, seed=seed, epoch=epoch))


def test_epochs_and_seeds_have_different_orders():
    first = permutation(1000, seed=0, epoch=0)
    for other in (permutation(1000, seed=0, epoch=1), permutation(1000, seed=1, epoch=0)):
        assert (first == other).float().mean() < 0.02


def test_all_orders_of_a_few_samples_are_equally_likely():
    orders = [tuple(permutation(3, seed=seed, epoch=0).tolist()) for seed in range(3000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert all(abs(count - 500) < 5 * 21 for count in counts)  # five standard deviations


def test_the_order_never_changes_between_versions():
    # A cursor saved by one version must mean the same samples in the next.
    assert permutation(12, seed=3, epoch=5).tolist() == FROZEN_ORDER
    assert sample_keys(stream_key(3, 5, "augment"), torch.arange(2)).tolist() == FROZEN_KEYS


FROZEN_ORDER = [0, 10, 5, 2, 7, 4, 8, 9, 1, 11, 3, 6]
FROZEN_KEYS = [9057835305927322178, 7432102662640868914]


def test_the_hash_is_that_of_splitmix64():
    def reference(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    values = [0, 1, 2**63 - 1, -1, -(2**63), 123456789]
    assert [v % 2**64 for v in mix(torch.tensor(values)).tolist()] == [reference(v % 2**64) for v in values]


def test_a_key_depends_only_on_the_position():
    whole = sample_keys(9, torch.arange(1000))
    assert torch.equal(sample_keys(9, torch.tensor([700, 3])), whole[[700, 3]])
    assert len(whole.unique()) == 1000


def test_purposes_with_one_seed_have_different_keys():
    assert len({stream_key(0, 0, purpose) for purpose in ("order", "augment", "source")}) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 7, 3, False), [(0, 3), (3, 6), (6, 7)]),
        ((0, 7, 3, True), [(0, 3), (3, 6)]),
        ((3, 7, 2, False), [(3, 5), (5, 7)]),
        ((7, 7, 3, False), []),
        ((6, 7, 3, True), []),
    ],
)
def test_spans_cover_the_rest_of_the_epoch(arguments, expected):
    *places, drop_last = arguments
    found = spans(*places, drop_last=drop_last)
    assert (list(found), len(found)) == (expected, len(expected))
