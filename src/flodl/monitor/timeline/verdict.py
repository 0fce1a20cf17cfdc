"""What limits a run, in one line with the numbers behind it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from flodl.core.formats import format_duration

from .record import OTHER, Record, Sample

Bound = Literal["data-bound", "compute-bound", "sync-bound", "mostly outside the loop", "unknown"]

# A device this busy is the limit: waits of the host are hidden behind it.
_DEVICE_FULL_PCT = 90.0
# A device this idle during steps is waiting for the host.
_DEVICE_STARVED_PCT = 50.0
# A wait with a smaller share of the time does not limit the run.
_MIN_WAIT_SHARE = 0.3
# If the loop takes a smaller share of the time, something else is the limit.
_MIN_LOOP_SHARE = 0.5
_MIN_SAMPLES = 3
_PHASE_TEXTS = {"step": "in steps", "data": "waiting for data", "sync": "in syncs", OTHER: "elsewhere"}


@dataclass(frozen=True)
class Verdict:
    """What limits the run; `shares` maps each phase to its share of the time, from 0 to 1."""

    bound: Bound
    line: str
    shares: dict[str, float] = field(default_factory=dict)
    gpu_busy_pct: float | None = None
    num_steps: int = 0

    def __str__(self) -> str:
        return self.line


def verdict(record: Record) -> Verdict:
    """Return what limits a run, from the first step to the last.

    The device decides first: a run with a GPU that is at least 90 % busy is compute-bound, whatever the host
    does. Otherwise, waiting for data or in syncs limits the run if it takes at least 30 % of the time. If
    steps, data and syncs together take less than half of the time, the rest is the limit.

    >>> samples = [Sample(index / 10, {"step": 0.03, "data": 0.07}, num_steps=5) for index in range(1, 21)]
    >>> print(verdict(Record(tuple(samples))))
    data-bound: 70 % waiting for data, 30 % in steps (100 steps in 2s)
    """
    samples = _training(record.samples)
    totals: dict[str, float] = {}
    for sample in samples:
        for name, seconds in sample.phases.items():
            totals[name] = totals.get(name, 0.0) + seconds
    whole_s = sum(totals.values())
    num_steps = sum(sample.num_steps for sample in samples)
    if len(samples) < _MIN_SAMPLES or num_steps == 0 or whole_s <= 0:
        line = (
            f"unknown: {num_steps} steps in {len(samples)} samples are too few for a verdict. Mark steps "
            "with timeline.step() or timeline.batches(loader), and train for at least a second."
        )
        return Verdict("unknown", line, num_steps=num_steps)
    shares = {name: seconds / whole_s for name, seconds in totals.items()}
    busy_pct = _busiest_gpu_pct(samples)
    bound = _bound(shares, busy_pct)
    device = "" if busy_pct is None else f"GPU {busy_pct:.0f} % busy, host "
    advice = ""
    if bound == "compute-bound" and busy_pct is not None and busy_pct < _DEVICE_STARVED_PCT:
        advice = ": the host is the limit"
    if bound == "mostly outside the loop" and shares.get(OTHER, 0.0) >= _MIN_LOOP_SHARE:
        advice = "; name its parts with timeline.phase(name)"
    took = f"({num_steps} steps in {format_duration(round(whole_s, 3))})"
    line = f"{bound}: {device}{_shares_text(shares)}{advice} {took}"
    return Verdict(bound, line, shares, busy_pct, num_steps)


def _training(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drop the samples before the first step or wait and after the last: setup is not training."""
    active = [
        index
        for index, sample in enumerate(samples)
        if sample.phases.get("step", 0.0) or sample.phases.get("data", 0.0)
    ]
    return samples[active[0] : active[-1] + 1] if active else ()


def _busiest_gpu_pct(samples: Sequence[Sample]) -> float | None:
    """Return the mean utilization of the busiest GPU: unused GPUs say nothing about the run."""
    rates: dict[int, list[float]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            if gpu.get("util_pct") is not None:
                rates.setdefault(gpu["device"], []).append(gpu["util_pct"])
    return max((statistics.fmean(seen) for seen in rates.values()), default=None)


def _bound(shares: dict[str, float], busy_pct: float | None) -> Bound:
    if busy_pct is not None and busy_pct >= _DEVICE_FULL_PCT:
        return "compute-bound"
    data, sync = shares.get("data", 0.0), shares.get("sync", 0.0)
    if max(data, sync) < _MIN_WAIT_SHARE:
        in_loop = data + sync + shares.get("step", 0.0)
        return "compute-bound" if in_loop >= _MIN_LOOP_SHARE else "mostly outside the loop"
    return "data-bound" if data >= sync else "sync-bound"


def _shares_text(shares: dict[str, float]) -> str:
    largest_first = sorted(shares.items(), key=lambda item: -item[1])
    shown = [(name, share) for name, share in largest_first if share >= 0.005]
    return ", ".join(f"{100 * share:.0f} % {_PHASE_TEXTS.get(name, f'in {name}')}" for name, share in shown)
