"""Reduce the points of a line without changing how it looks: keep the extremes of each interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Line = tuple[Array, Array]

_CHUNK = 1 << 18


def extremes(x: Array, y: Array, *, max_points: int) -> Line:
    """Return about `max_points` points of a line at most; peaks, dips, both ends and NaN are kept.

    >>> x = np.arange(1_000_000.0)
    >>> y = np.zeros_like(x); y[123_456] = 9.0; y[777_777] = -9.0
    >>> kept_x, kept_y = extremes(x, y, max_points=100)
    >>> len(kept_x) <= 110, [float(value) for value in (kept_y.max(), kept_y.min(), kept_x[0], kept_x[-1])]
    (True, [9.0, -9.0, 0.0, 999999.0])
    """
    count = len(x)
    if count <= max_points:
        return np.asarray(x), np.asarray(y)
    width = -(-count // max(max_points // 2, 1))
    # A few intervals at a time, so that ten million points are never copied at once.
    step = max(_CHUNK // width, 1) * width
    indices = [
        _extreme_indices(np.asarray(y[start : start + step]), width) + start
        for start in range(0, count, step)
    ]
    kept = np.unique(np.concatenate([[0], *indices, [count - 1]]))
    return np.asarray(x[kept]), np.asarray(y[kept])


def _extreme_indices(y: Array, width: int) -> Array:
    """Return the indices of the minimum, the maximum and the first NaN of each interval."""
    intervals = -(-len(y) // width)
    padded = np.full(intervals * width, np.inf)
    padded[: len(y)] = y
    missing = np.isnan(padded)
    has_missing = bool(missing.any())
    if has_missing:
        padded[missing] = np.inf
    grid = padded.reshape(intervals, width)
    starts = np.arange(intervals) * width
    lowest = starts + grid.argmin(axis=1)
    padded[len(y) :] = -np.inf
    if has_missing:
        padded[missing] = -np.inf
    highest = starts + grid.argmax(axis=1)
    found = [lowest, highest]
    if has_missing:
        grid_missing = missing.reshape(intervals, width)
        found.append((starts + grid_missing.argmax(axis=1))[grid_missing.any(axis=1)])
    return np.concatenate(found)


def latest_pass(x: Array) -> slice | Array:
    """Select the points that remain valid after a run went back: for repeated steps, the later points.

    >>> x = np.array([0.0, 1, 2, 3, 2, 3, 4])
    >>> x[latest_pass(x)].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    parts = (x[start : start + _CHUNK + 1] for start in range(0, len(x), _CHUNK))
    # Compared instead of subtracted: a damaged index may contain infinity.
    if all(bool((part[1:] > part[:-1]).all()) for part in parts):
        return slice(None)
    later = np.minimum.accumulate(np.append(x[1:], np.inf)[::-1])[::-1]
    return np.asarray(x < later)


def join_lines(lines: Sequence[Line]) -> Line:
    """Concatenate the parts of one line, in the order in which they were written."""
    if len(lines) == 1:
        return lines[0]
    x, y = np.concatenate([x for x, _ in lines]), np.concatenate([y for _, y in lines])
    return x, y
