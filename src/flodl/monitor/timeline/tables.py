"""A timeline as JSON, as a CSV table and as a summary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .gaps import idle_gaps
from .record import Record, Sample
from .verdict import verdict

_GPU_COLUMNS = (
    "util_pct",
    "vram_used_bytes",
    "vram_allocated_bytes",
    "vram_reserved_bytes",
    "vram_total_bytes",
    "power_w",
)
_IDLE_PCT = 5.0


def to_json(record: Record) -> str:
    """Return the complete record as strict JSON."""
    return json.dumps(record.to_dict(), separators=(",", ":"), allow_nan=False)


def to_csv(record: Record) -> str:
    """Return a CSV table with a row for each sample; unknown values are blank.

    >>> gpu = {"device": 0, "util_pct": 90.0}
    >>> sample = Sample(0.1, {"step": 0.08, "data": 0.02}, 4, cpu_pct=50.0, gpus=(gpu,))
    >>> print(to_csv(Record((sample,))), end="")
    time_s,num_steps,cpu_pct,process_cpu_pct,ram_used_bytes,ram_total_bytes,step_s,data_s,gpu0_util_pct
    0.1000,4,50.0,,,,0.0800,0.0200,90.0
    """
    phases = list(dict.fromkeys(name for sample in record.samples for name in sample.phases))
    columns = [
        (device, key)
        for device in sorted(record.devices)
        for key in _GPU_COLUMNS
        if any(_gpu_value(sample, device, key) is not None for sample in record.samples)
    ]
    names = ["time_s", "num_steps", "cpu_pct", "process_cpu_pct", "ram_used_bytes", "ram_total_bytes"]
    header = [
        *names,
        *(f"{_column_name(name)}_s" for name in phases),
        *(f"gpu{device}_{key}" for device, key in columns),
    ]
    return "\n".join([",".join(header), *(_row(sample, phases, columns) for sample in record.samples)]) + "\n"


def summary(record: Record) -> dict[str, Any]:
    """Return the totals: time, steps, shares of the phases, marks by kind, idle time of each GPU."""
    found = verdict(record)
    durations: dict[str, list[float]] = {}
    for mark in record.marks:
        durations.setdefault(mark.kind, []).append(mark.duration_s)
    rates = {
        device: [rate for sample in record.samples if (rate := sample.util_pct(device)) is not None]
        for device in record.devices
    }
    return {
        "verdict": str(found),
        "bound": found.bound,
        "duration_s": record.duration_s,
        "num_samples": len(record.samples),
        "num_steps": sum(sample.num_steps for sample in record.samples),
        "shares": found.shares,
        "marks": {kind: {"count": len(each), "total_s": sum(each)} for kind, each in durations.items()},
        "gpus": {
            device: {
                "busy_pct": sum(seen) / len(seen) if seen else None,
                "idle_pct": 100 * sum(rate < _IDLE_PCT for rate in seen) / len(seen) if seen else None,
                "num_gaps": len(idle_gaps(record, device)),
            }
            for device, seen in rates.items()
        },
    }


def _row(sample: Sample, phases: Sequence[str], columns: Sequence[tuple[int, str]]) -> str:
    cells = [f"{sample.time_s:.4f}", str(sample.num_steps)]
    cells += [_cell(value) for value in (sample.cpu_pct, sample.process_cpu_pct)]
    cells += [_cell(value) for value in (sample.ram_used_bytes, sample.ram_total_bytes)]
    cells += [f"{sample.phases.get(name, 0.0):.4f}" for name in phases]
    cells += [_cell(_gpu_value(sample, device, key)) for device, key in columns]
    return ",".join(cells)


def _gpu_value(sample: Sample, device: int, key: str) -> float | int | None:
    return next((gpu.get(key) for gpu in sample.gpus if gpu["device"] == device), None)


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _column_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name).lstrip("-")
