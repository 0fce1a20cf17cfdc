"""The data of a timeline: samples at regular intervals, and marks for single events."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# The phase of the host when no other phase is open.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sample:
    """A hardware reading, and how the host spent the time since the previous sample.

    `phases` has seconds by name ("step", "data", "sync", …) that add up to the time between the samples.
    """

    time_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    num_steps: int = 0
    cpu_pct: float | None = None
    process_cpu_pct: float | None = None
    ram_used_bytes: int | None = None
    ram_total_bytes: int | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()

    def util_pct(self, device: int | str) -> float | None:
        """Return the utilization of a GPU by its index, or of this process for "cpu"."""
        if device == "cpu":
            return self.process_cpu_pct
        return next((gpu.get("util_pct") for gpu in self.gpus if gpu["device"] == device), None)


@dataclass(frozen=True, slots=True)
class Mark:
    """A single event: when it started, its kind, its duration and a label."""

    time_s: float
    kind: str
    duration_s: float = 0.0
    label: str = ""


@dataclass(frozen=True)
class Record:
    """A complete timeline; times are seconds since its start at `started_s` (Unix time)."""

    samples: tuple[Sample, ...]
    marks: tuple[Mark, ...] = ()
    started_s: float = 0.0
    num_dropped: int = 0

    @property
    def duration_s(self) -> float:
        """The duration that the samples cover."""
        return self.samples[-1].time_s if self.samples else 0.0

    @property
    def devices(self) -> dict[int, str]:
        """The names of the GPUs by index."""
        return {gpu["device"]: str(gpu.get("name", "")) for sample in self.samples for gpu in sample.gpus}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; unknown values are omitted."""
        return {
            "started_s": self.started_s,
            "num_dropped": self.num_dropped,
            "samples": [_known(asdict(sample)) for sample in self.samples],
            "marks": [_known(asdict(mark)) for mark in self.marks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Restore a record from `to_dict`.

        >>> record = Record((Sample(0.1, {"step": 0.1}, num_steps=3),), (Mark(0.05, "sync", 0.01),))
        >>> Record.from_dict(record.to_dict()) == record
        True
        """
        samples = (Sample(**{**sample, "gpus": tuple(sample.get("gpus", ()))}) for sample in data["samples"])
        marks = tuple(Mark(**mark) for mark in data["marks"])
        return cls(tuple(samples), marks, data["started_s"], data["num_dropped"])


def merge_pairs(samples: Sequence[Sample]) -> list[Sample]:
    """Merge pairs of neighboring samples, so that a long run needs no more memory than a short one.

    >>> pair = [Sample(1.0, {"step": 1.0}, 4, cpu_pct=20.0), Sample(2.0, {"data": 1.0}, 2, cpu_pct=40.0)]
    >>> merge_pairs(pair)
    [Sample(time_s=2.0, phases={'step': 1.0, 'data': 1.0}, num_steps=6, cpu_pct=30.0, ...)]
    """
    pairs = zip(samples[::2], samples[1::2])
    return [_merge(first, second) for first, second in pairs] + list(samples[len(samples) & ~1 :])


def _merge(first: Sample, second: Sample) -> Sample:
    names = {**first.phases, **second.phases}
    phases = {name: first.phases.get(name, 0.0) + second.phases.get(name, 0.0) for name in names}
    gpus = []
    for gpu in second.gpus:
        rate = _mean(first.util_pct(gpu["device"]), gpu.get("util_pct"))
        gpus.append({**gpu, "util_pct": rate} if rate is not None else gpu)
    return Sample(
        time_s=second.time_s,
        phases=phases,
        num_steps=first.num_steps + second.num_steps,
        cpu_pct=_mean(first.cpu_pct, second.cpu_pct),
        process_cpu_pct=_mean(first.process_cpu_pct, second.process_cpu_pct),
        ram_used_bytes=second.ram_used_bytes,
        ram_total_bytes=second.ram_total_bytes,
        gpus=tuple(gpus),
    )


def _mean(first: float | None, second: float | None) -> float | None:
    known = [value for value in (first, second) if value is not None]
    return statistics.fmean(known) if known else None


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value not in ((), "")}
