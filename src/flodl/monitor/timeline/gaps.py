"""Find the times when a device was idle, and what the host did meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .record import OTHER, Record, Sample

_CAUSES = {
    "data": "waiting for data",
    "sync": "waiting in a sync",
    "save": "saving",
    "evaluate": "evaluating",
    "step": "inside a step: the host launches work more slowly than the device runs it",
}
_BUSY_CORE_PCT = 70.0
_MIN_WAIT_SHARE = 0.3
# Drivers report utilization over about the last 0.2 seconds.
_WINDOW_S = 0.2


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which a device was idle, and its likely cause."""

    start_s: float
    end_s: float
    device: int | str
    cause: str

    @property
    def duration_s(self) -> float:
        """The length in seconds."""
        return self.end_s - self.start_s


def idle_gaps(
    record: Record, device: int | str = 0, *, below_pct: float = 5.0, min_s: float = 0.2
) -> list[Gap]:
    """Return the periods of at least `min_s` seconds in which a device was used less than `below_pct`.

    A sample without the device counts as busy, and a gap at the end is closed by the last sample. The device
    is the index of a GPU, or "cpu" for this process.

    >>> util = [2.0 if 5 <= index <= 14 else 90.0 for index in range(20)]
    >>> gpus = [({"device": 0, "util_pct": rate},) for rate in util]
    >>> samples = [Sample(index / 10, {"data": 0.1}, gpus=gpu) for index, gpu in enumerate(gpus)]
    >>> idle_gaps(Record(tuple(samples)))
    [Gap(start_s=0.5, end_s=1.5, device=0, cause='waiting for data (100 %)')]
    """
    gaps = []
    for start, end in _idle_runs(record, device, below_pct):
        first, last = record.samples[start], record.samples[min(end, len(record.samples) - 1)]
        # Rounded, so that floating-point error does not decide.
        if round(last.time_s - first.time_s - min_s, 6) >= 0:
            before_s = record.samples[start - 1].time_s if start else 0.0
            weight = min(_WINDOW_S / max(first.time_s - before_s, _WINDOW_S), 1.0)
            spent = _spent(record.samples[start:end], first_weight=weight)
            rates = [sample.process_cpu_pct for sample in record.samples[start:end]]
            cause = _cause(record, spent, rates, first.time_s, last.time_s)
            gaps.append(Gap(first.time_s, last.time_s, device, cause))
    return gaps


def _idle_runs(record: Record, device: int | str, below_pct: float) -> Iterator[tuple[int, int]]:
    start = None
    for index, sample in enumerate(record.samples):
        rate = sample.util_pct(device)
        is_idle = rate is not None and rate < below_pct
        if is_idle and start is None:
            start = index
        elif not is_idle and start is not None:
            yield start, index
            start = None
    if start is not None:
        yield start, len(record.samples)


def _spent(samples: Sequence[Sample], *, first_weight: float) -> dict[str, float]:
    """Sum the phases; of the first sample, only the part within the window of its utilization."""
    totals: dict[str, float] = {}
    for index, sample in enumerate(samples):
        for name, seconds in sample.phases.items():
            totals[name] = totals.get(name, 0.0) + seconds * (1.0 if index else first_weight)
    return totals


def _cause(
    record: Record, totals: dict[str, float], rates: Sequence[float | None], start_s: float, end_s: float
) -> str:
    gc_s = sum(
        max(min(mark.time_s + mark.duration_s, end_s) - max(mark.time_s, start_s), 0.0)
        for mark in record.marks
        if mark.kind == "gc"
    )
    length_s = end_s - start_s
    if length_s > 0 and gc_s >= length_s / 2:
        return f"garbage collection ({_share(gc_s, length_s)})"
    whole_s = sum(totals.values())
    # A named wait explains more than "inside a step" or "elsewhere", even with a smaller share.
    waits = {name: seconds for name, seconds in totals.items() if name not in ("step", OTHER)}
    name = max(waits, key=lambda name: waits[name], default="")
    if not name or waits[name] < _MIN_WAIT_SHARE * whole_s:
        name = max(totals, key=lambda name: totals[name], default=OTHER)
    if name != OTHER:
        return f"{_CAUSES.get(name, name)} ({_share(totals[name], whole_s)})"
    known = [rate for rate in rates if rate is not None]
    mean_pct = statistics.fmean(known) if known else 0.0
    if mean_pct >= _BUSY_CORE_PCT:
        return f"the host is busy outside of any marked phase (process at {mean_pct:.0f} % of a core)"
    return "no phase was marked, and the host is idle"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
