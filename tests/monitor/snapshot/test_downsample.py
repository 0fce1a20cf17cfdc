"""Downsampling keeps peaks, dips, ends and NaN."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.monitor.snapshot import downsample
from flodl.monitor.snapshot.downsample import extremes, latest_pass


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    max_points=st.integers(2, 50),
)
def test_extremes_and_ends_are_kept_in_order(values, max_points):
    x, y = np.arange(float(len(values))), np.array(values)
    kept_x, kept_y = extremes(x, y, max_points=max_points)
    assert kept_y.max() == y.max()
    assert kept_y.min() == y.min()
    assert (kept_x[0], kept_x[-1]) == (x[0], x[-1])
    assert (np.diff(kept_x) > 0).all()
    assert all(y[int(index)] == value for index, value in zip(kept_x, kept_y))
    assert len(kept_x) <= max_points + 2 or len(values) <= max_points


def test_a_single_nan_among_many_is_kept():
    y = np.zeros(10_000)
    y[5_000] = np.nan
    _, kept = extremes(np.arange(10_000.0), y, max_points=100)
    assert np.isnan(kept).sum() == 1


def test_a_line_of_only_nan_is_supported():
    kept_x, kept_y = extremes(np.arange(1000.0), np.full(1000, np.nan), max_points=10)
    assert np.isnan(kept_y).all()
    assert len(kept_x) <= 20


@pytest.mark.parametrize("chunk", [64, 1 << 18])
def test_chunks_do_not_change_what_is_kept(monkeypatch, chunk):
    monkeypatch.setattr(downsample, "_CHUNK", chunk)
    y = np.random.default_rng(0).normal(size=5_000)
    x, _ = extremes(np.arange(5_000.0), y, max_points=200)
    width = -(-5_000 // 100)
    lowest = [start + int(y[start : start + width].argmin()) for start in range(0, 5_000, width)]
    assert set(lowest) <= set(x.astype(int).tolist())


@given(st.lists(st.integers(0, 20), max_size=40))
def test_of_repeated_steps_the_later_point_is_kept(steps):
    x = np.array(steps, dtype=float)
    kept = x[latest_pass(x)]
    assert (np.diff(kept) > 0).all()
    if steps:
        assert kept[-1] == steps[-1]


def test_steps_that_are_infinite_in_a_damaged_index_give_no_warning():
    x = np.array([0.0, np.inf, np.inf, 3.0])
    assert x[latest_pass(x)].tolist() == [0.0, 3.0]
