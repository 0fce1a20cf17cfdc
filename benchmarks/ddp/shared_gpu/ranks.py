"""Ranks of a Trainer with shares of a GPU, and the records of what they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import CoordinatorSettings
from flodl.distributed.placement import engine
from flodl.distributed.supervisor import LocalLauncher, RankSpec
from flodl.distributed.supervisor.launcher import RankProcess
from flodl.train.ranks import fit, recorder

from .mps import SHARE

Record = dict[str, Any]


class SharesLauncher(LocalLauncher):
    """Starts each rank with its share of the GPU, which a process must know before it uses CUDA."""

    def __init__(self, shares: Sequence[int]) -> None:
        self._shares = list(shares)
        self._num_started = 0

    def start(self, spec: RankSpec) -> RankProcess:
        share = self._shares[self._num_started % len(self._shares)]
        self._num_started += 1
        os.environ[SHARE] = str(share)
        try:
            return super().start(spec)
        finally:
            del os.environ[SHARE]


@dataclass
class Timeline:
    """The records of the supervisor, each with the time at which it was written."""

    records: list[tuple[float, Record]] = field(default_factory=list)
    listeners: list[Callable[[Record], object]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.records.append((time.monotonic(), record))
        for listener in self.listeners:
            listener(record)

    def of(self, *kinds: str) -> list[tuple[float, Record]]:
        return [(when, record) for when, record in self.records if record["kind"] in kinds]


@contextmanager
def watched(shares: Sequence[int] = (), overhead_target: float | None = None) -> Iterator[Timeline]:
    """Let Trainers start their ranks with these shares, and record what the ranks do."""
    timeline = Timeline()
    launcher, on_event, settings = engine.LocalLauncher, recorder.Recorder.on_event, fit.CoordinatorSettings

    def add(self: recorder.Recorder, record: Record) -> None:
        timeline.add(record)
        on_event(self, record)

    recorder.Recorder.on_event = add  # type: ignore[method-assign]
    if shares:
        engine.LocalLauncher = partial(SharesLauncher, shares)  # type: ignore[assignment, misc]
    if overhead_target is not None:
        cadence = CadenceSettings(overhead_target=overhead_target)
        fit.CoordinatorSettings = partial(CoordinatorSettings, cadence=cadence)  # type: ignore[assignment, misc]
    try:
        yield timeline
    finally:
        engine.LocalLauncher, recorder.Recorder.on_event = launcher, on_event  # type: ignore[method-assign, misc]
        fit.CoordinatorSettings = settings  # type: ignore[misc]


@dataclass
class Stretch:
    """What ranks did between two commits: from the start of `since_s` up to the commit at `until_s`."""

    since_s: float
    until_s: float
    samples: int
    windows: int
    # Per rank: shares of the time in which it trains, waits for others, and reduces.
    busy: list[float]
    waiting: list[float]
    reducing: list[float]

    @property
    def samples_per_s(self) -> float:
        return self.samples / (self.until_s - self.since_s)

    def to_json(self) -> dict[str, Any]:
        idle = [1.0 - share for share in self.busy]
        return {
            "seconds": self.until_s - self.since_s,
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
            "windows": self.windows,
            "not_training": idle,
            "waiting": self.waiting,
            "reducing": self.reducing,
        }


def epochs_of(timeline: Timeline) -> list[list[tuple[float, Record]]]:
    """Split the records after each save, which ends an epoch."""
    found: list[list[tuple[float, Record]]] = [[]]
    for when, record in timeline.records:
        found[-1].append((when, record))
        if record["kind"] == "saved":
            found.append([])
    return [each for each in found if any(record["kind"] == "plan" for _, record in each)]


def stretch(
    records: list[tuple[float, Record]], num_ranks: int, *, skip: int = 0, in_background: bool = False
) -> Stretch | None:
    """Sum up the records of an epoch, from its first plan, or from its commit number `skip`.

    With reductions in the background, ranks do not wait for them, and they count as training meanwhile.
    """
    commits = [(when, record) for when, record in records if record["kind"] == "commit" and record["batches"]]
    if len(commits) <= skip:
        return None
    first_plan = min(when for when, record in records if record["kind"] == "plan")
    since_s = first_plan if skip == 0 else commits[skip - 1][0]
    until_s = commits[-1][0]
    busy, waiting, reducing = ([0.0] * num_ranks for _ in range(3))
    for when, record in records:
        if record["kind"] == "arrived":
            rank, began_s = record["rank"], when - (record["took_ms"] or 0.0) / 1000.0
            busy[rank] += max(0.0, min(when, until_s) - max(began_s, since_s))
            # Before the first plan of an epoch, ranks wait for the evaluation.
            waited_since_s = began_s - record["wait_ms"] / 1000.0
            waiting[rank] += max(0.0, min(began_s, until_s) - max(waited_since_s, since_s))
        elif record["kind"] == "reduced" and since_s < when <= until_s:
            waited_s = record.get("wait_ms", 0.0) / 1000.0
            waiting[record["rank"]] += 0.0 if in_background else waited_s
            reducing[record["rank"]] += record.get("reduce_ms", 0.0) / 1000.0
    total_s = until_s - since_s
    return Stretch(
        since_s,
        until_s,
        sum(record["samples"] for _, record in commits[skip:]),
        len(commits) - skip,
        *([value / total_s for value in values] for values in (busy, waiting, reducing)),
    )


def links_of(timeline: Timeline) -> list[str]:
    """Return over what the ranks averaged, in words."""
    return list(
        dict.fromkeys(f"{record['backend']}: {record['reason']}" for _, record in timeline.of("link"))
    )
