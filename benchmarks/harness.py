"""Timing for all benchmarks: alternating rivals, medians with scaled MAD, facts about the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Timing:
    """The seconds of one rival in all rounds."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def jitter(self) -> float:
        """The scaled MAD divided by the median."""
        middle = self.median_s
        return scaled_mad(sample - middle for sample in self.samples_s) / middle

    @property
    def best_s(self) -> float:
        return min(self.samples_s)


def scaled_mad(apart: Iterable[float]) -> float:
    """Return a robust estimate of the standard deviation from distances to the median."""
    return 1.4826 * statistics.median(map(abs, apart))


def interleave(
    rivals: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 3
) -> dict[str, Timing]:
    """Time the rivals alternately, in a different order in each round."""
    for _ in range(warmup):
        for run in rivals.values():
            run()
    return take_turns({name: partial(timed, run) for name, run in rivals.items()}, rounds=rounds)


def take_turns(
    rivals: Mapping[str, Callable[[int], Sequence[float]]],
    *,
    rounds: int,
    repeats: int = 1,
    settle: int = 0,
    settle_s: float = 0.0,
    warm_rounds: int = 0,
) -> dict[str, Timing]:
    """Let each rival run and time `repeats` samples per round, in a different order in each round.

    `settle` runs, and as many as fit into `settle_s` seconds, come first and do not count: caches and clock
    rates still reflect the previous rival. The first `warm_rounds` rounds do not count either: a device that
    was idle during setup may be faster at first.
    """
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    for turn in range(-warm_rounds, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            until = time.perf_counter() + settle_s
            if settle:
                rivals[name](settle)
            while time.perf_counter() < until:
                rivals[name](1)
            taken = rivals[name](repeats)
            samples[name].extend(taken if turn >= 0 else ())
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(
    run: Callable[[], object], repeats: int, *, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds of each of `repeats` runs, from idle device to idle device."""
    taken = []
    for _ in range(repeats):
        wait()
        started = clock()
        run()
        wait()
        taken.append(clock() - started)
    return taken


def paired_ratio(ours: Timing, theirs: Timing) -> float:
    """Return the median of the ratios within each round, which a slow machine affects equally."""
    return statistics.median(a / b for a, b in zip(ours.samples_s, theirs.samples_s))


def paired_difference(ours: Timing, theirs: Timing) -> float:
    """Return the median of the differences within each round."""
    return statistics.median(a - b for a, b in zip(ours.samples_s, theirs.samples_s))


def machine() -> dict[str, Any]:
    """Return the facts about the machine and versions that belong to a result."""
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **_versions("jax", "optax", "pytorch-lightning", "transformers"),
        "system": platform.system(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(0)
        facts["cuda"] = torch.version.cuda
    return facts


def write_results(name: str, results: Mapping[str, Any], *, folder: Path = RESULTS) -> Path:
    """Write the results as JSON, by default to the results folder."""
    path = folder / f"{name}.json"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2) + "\n")
    return path


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return an aligned text table."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in lines)


def wait() -> None:
    """Wait until the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _versions(*packages: str) -> dict[str, str]:
    """Return the versions of the rivals that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Return the measured commit, or FLODL_COMMIT for sources without a git repository."""
    given = os.environ.get("FLODL_COMMIT")
    if given:
        return given
    commit = _git("rev-parse", "--short=12", "HEAD")
    return (commit or "unknown") + ("-dirty" if commit and _git("status", "--porcelain") else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
