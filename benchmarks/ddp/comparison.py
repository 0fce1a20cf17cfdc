"""Summaries of runs of several rivals: medians, paired ratios with intervals, tables."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from harness import scaled_mad, table

BASE = "ddp"
NUM_RESAMPLES = 2000


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the scaled MAD divided by it.

    >>> middle([1.0, 2.0, 3.0])
    (2.0, 0.7413)
    """
    median = statistics.median(values)
    return median, scaled_mad(value - median for value in values) / median if median else 0.0


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap interval of the median.

    >>> interval([2.0, 2.0, 2.0])
    (2.0, 2.0)
    """
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    cut = int((1.0 - level) / 2.0 * NUM_RESAMPLES)
    return medians[cut], medians[-1 - cut]


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of each rival, and how many times faster than plain DDP it is, round by round."""
    found = {}
    for name, rounds in runs.items():
        wall_s, jitter = middle([each["wall_s"] for each in rounds])
        to_target = [each["to_target_s"] for each in rounds]
        entry: dict[str, Any] = {
            "wall_s": wall_s,
            "jitter": jitter,
            "samples_per_s": statistics.median(each["samples_per_s"] for each in rounds),
            "idle_settled": _per_rank(rounds, "idle_settled"),
            "idle": _per_rank(rounds, "idle"),
            "syncs": statistics.median(each["syncs"] for each in rounds),
            "megabytes": statistics.median(each["num_bytes"] for each in rounds) / 1e6,
            "accuracy": statistics.median(each["accuracy"] for each in rounds),
            "num_reached": sum(each is not None for each in to_target),
            "to_target_s": None if None in to_target else statistics.median(to_target),
            "rounds": [{key: value for key, value in each.items() if key != "curve"} for each in rounds],
        }
        divergences = [each["divergence"] for each in rounds if each["divergence"] is not None]
        entry["divergence"] = statistics.median(divergences) if divergences else None
        if BASE in runs:
            entry |= _against(runs[BASE], rounds)
        found[name] = entry
    return found


def _against(base: list[dict[str, Any]], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for key, name in (("wall_s", "speedup"), ("to_target_s", "target_speedup")):
        pairs = [(theirs[key], ours[key]) for theirs, ours in zip(base, rounds)]
        ratios = [theirs / ours for theirs, ours in pairs if theirs is not None and ours is not None]
        complete = len(ratios) == len(pairs)
        entry[name] = statistics.median(ratios) if complete else None
        entry[f"{name}_interval"] = interval(ratios) if complete else None
    return entry


def _per_rank(rounds: list[dict[str, Any]], key: str) -> list[float]:
    return [statistics.median(values) for values in zip(*(each[key] for each in rounds))]


def print_scenario(name: str, found: dict[str, Any], target: float) -> None:
    rows = []
    for rival, entry in found.items():
        rows.append(
            [
                rival,
                f"{entry['wall_s']:.2f} ±{entry['jitter']:.1%}",
                f"{entry['samples_per_s']:,.0f}",
                _ratio(entry, "speedup"),
                " ".join(f"{share:.1%}" for share in entry["idle_settled"]),
                f"{entry['syncs']:.0f}",
                f"{entry['megabytes']:.1f}",
                "—" if entry["divergence"] is None else f"{entry['divergence']:.3f}",
                f"{entry['accuracy']:.4f}",
                "—" if entry["to_target_s"] is None else f"{entry['to_target_s']:.2f}",
                _ratio(entry, "target_speedup"),
            ]
        )
    header = ["rival", "seconds", "samples/s", "× DDP", "idle per rank", "syncs", "MB sent", "divergence"]
    header += ["accuracy", f"s to {target:.0%}", "× DDP"]
    num = len(next(iter(found.values()))["rounds"])
    print(f"\n{name}, medians of {num} rounds, 95 % intervals of paired ratios\n")
    print(table(header, rows), flush=True)


def _ratio(entry: dict[str, Any], name: str) -> str:
    if entry.get(name) is None:
        return "—"
    low, high = entry[f"{name}_interval"]
    return f"{entry[name]:.2f} [{low:.2f}, {high:.2f}]"
