"""Estimating the remaining time of a run from its recent epochs and its progress in the current one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

_RECENT = 5


def seconds_left(
    durations: Mapping[int, float],
    *,
    done: int,
    total_epochs: int,
    fraction: float = 0.0,
    elapsed_s: float = 0.0,
) -> float | None:
    """Estimate the seconds to the end, or None while nothing is known.

    `durations` maps each measured epoch to its seconds, including epochs before a resume. `done` counts all
    finished epochs, so a run resumed at epoch 80 of 100 has twenty left. Later epochs are those of an earlier
    run in the same folder, which this one replaces; they are left out. `fraction` of the current epoch took
    `elapsed_s`; before the first epoch is finished, the estimate comes from these two alone.

    >>> seconds_left({0: 90.0, 1: 10.0, 2: 10.0}, done=3, total_epochs=10)
    70.0
    >>> seconds_left({}, done=80, total_epochs=100, fraction=0.5, elapsed_s=30.0)
    1170.0
    >>> seconds_left({0: 10.0, 1: 99.0, 2: 99.0}, done=1, total_epochs=3)
    20.0
    >>> seconds_left({}, done=0, total_epochs=3) is None
    True
    """
    left = max(total_epochs - done - min(fraction, 1.0), 0.0)
    recent = sorted(epoch for epoch in durations if epoch < done)[-_RECENT:]
    if recent:
        # With the median, one epoch with a long pause does not change the estimate.
        return left * statistics.median(durations[epoch] for epoch in recent)
    return left * elapsed_s / fraction if fraction > 0 else None
