"""Tests of the few sizes that batches are rounded up to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flodl.hf.data.budgets import batch_lengths, choose_sizes, waste


def test_no_other_choice_wastes_less() -> None:
    random = np.random.default_rng(0)
    for most in (1, 2, 3):
        needed = random.integers(1, 700, 40)
        sizes = choose_sizes(needed, multiple=64, most=most)
        candidates = sorted({-(-int(size) // 64) * 64 for size in needed})
        best = min(
            waste(needed, chosen)
            for number in range(1, most + 1)
            for chosen in itertools.combinations(candidates, number)
            if chosen[-1] == candidates[-1]
        )
        assert len(sizes) <= most
        assert waste(needed, sizes) == pytest.approx(best)


def test_few_different_sizes_are_all_kept() -> None:
    assert choose_sizes(np.array([10, 20, 70, 70]), multiple=32) == [32, 96]
    assert choose_sizes(np.array([7]), multiple=8) == [8]


def test_many_candidates_are_searched_quickly() -> None:
    needed = np.random.default_rng(0).integers(1, 20_000, 2000)
    sizes = choose_sizes(needed, multiple=8)
    assert len(sizes) == 8
    assert waste(needed, sizes) < 0.15


def test_batches_of_fewer_texts_than_the_batch_size_have_one_size() -> None:
    assert batch_lengths(np.array([3, 4]), 8).tolist() == [[3, 4]]
