"""Slices of time: thinning bounds their number and keeps every second."""

import random
from itertools import pairwise

import pytest

from flodl.monitor.ranks import thin, thin_syncs


def random_slices(count, *, longest_s=1.0):
    rng = random.Random(0)
    now_s, found = 1e9, []
    for _ in range(count):
        end_s = now_s + rng.uniform(0.001, longest_s)
        spent = [0.0, 0.0, 0.0]
        spent[rng.randrange(3)] = end_s - now_s
        found.append((now_s, end_s, *spent))
        now_s = end_s
    return found


@pytest.mark.parametrize("most", [2, 7, 100, 999])
def test_thinning_bounds_the_number_of_slices_and_keeps_all_seconds(most):
    slices = random_slices(1000)
    found = thin(slices, most)
    assert len(found) <= most
    assert (found[0][0], found[-1][1]) == (slices[0][0], slices[-1][1])
    for column in (2, 3, 4):
        assert sum(each[column] for each in found) == pytest.approx(sum(each[column] for each in slices))
    assert all(before[1] == after[0] for before, after in pairwise(found))


def test_few_slices_are_kept_as_they_are():
    slices = random_slices(50)
    assert thin(slices, 50) == slices


def test_a_long_interval_stays_exact_among_short_ones():
    long = (2000.0, 3000.0, 1000.0, 0.0, 0.0)
    short = [(1999.0 + index / 1000, 1999.0 + (index + 1) / 1000, 0.0, 0.0, 0.001) for index in range(1000)]
    assert thin([*short, long], 100)[-1] == long


def test_merged_syncs_have_the_number_of_all():
    found = thin_syncs([(float(index), 1) for index in range(1000)], 64)
    assert len(found) <= 64
    assert sum(count for _, count in found) == 1000


def test_syncs_at_one_moment_are_merged():
    assert sum(count for _, count in thin_syncs([(5.0, 1)] * 10, 4)) == 10
