"""Recovery after SIGKILL of one of three ranks during a reduction of 25 million parameters.

    python benchmarks/ddp/recovery.py [--rounds 5] [--parameters 25000000] [--rivals flodl,torchft]

A rank is killed while all three are inside the reduction of a window. Measured is the time until the
survivors have committed: in flodl, the same window, with the work that they have; in torchft, the next
average that succeeds, since the steps of the window are discarded. flodl must commit every position exactly
once, including those of the lost rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import argparse
import logging
import os
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from comparison import interval
from harness import RESULTS, table, write_results
from peers.torchft_recovery import run_torchft

from flodl.distributed.coordination import CoordinatorSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.ranks import RankInfo, Trained
from flodl.distributed.reduction import FlatState
from flodl.distributed.supervisor import RankSpec, supervise

NUM_RANKS, VICTIM, BATCH = 3, 2, 4
NUM_SAMPLES = 800
BATCH_S = 0.02
# In which reduction a rank is killed, and how long after its start.
WINDOW, KILL_AFTER_S = 3, 0.05


class SleepingWorker:
    """Holds many parameters, and sleeps instead of training them."""

    def __init__(self, info: RankInfo, num_parameters: int) -> None:
        self._weights = torch.zeros(num_parameters)
        self.state = FlatState([self._weights])

    def train(self, lease: Any, position: Any, *, should_stop: Any) -> Trained:
        started_s, steps = time.perf_counter(), 0
        for _ in range(lease.batches):
            if should_stop():
                break
            time.sleep(BATCH_S)
            self._weights[:1000] += 1.0
            steps += 1
        return Trained(steps, 1000.0 * (time.perf_counter() - started_s), loss=1.0)

    def donate(self) -> bytes:
        return b""

    def receive(self, donated: bytes) -> None:
        pass

    def save(self, point: Any, consensus: Any, outer: Any, coordinator: Any) -> object:
        return None


@dataclass(frozen=True)
class MakeWorker:
    num_parameters: int

    def __call__(self, info: RankInfo) -> SleepingWorker:
        return SleepingWorker(info, self.num_parameters)


class Killer:
    """Ends a rank during a reduction, and remembers when."""

    def __init__(self) -> None:
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.killed_s = 0.0
        self._pids: dict[int, int] = {}
        self._is_set = False

    def __call__(self, record: dict[str, Any]) -> None:
        self.events.append((time.monotonic(), record))
        if record["kind"] == "started":
            self._pids[record["rank"]] = record["pid"]
        if record["kind"] == "reduce" and record["window"] == WINDOW and not self._is_set:
            self._is_set = True
            threading.Timer(KILL_AFTER_S, self._kill).start()

    def _kill(self) -> None:
        self.killed_s = time.monotonic()
        os.kill(self._pids[VICTIM], signal.SIGKILL)

    def first(self, kind: str, **fields: Any) -> float:
        """Return when this happened first."""
        for when_s, record in self.events:
            if record["kind"] == kind and all(record[name] == value for name, value in fields.items()):
                return when_s
        raise SystemExit(f"no {kind} with {fields} was recorded")


def run_flodl(num_parameters: int) -> dict[str, Any]:
    killer = Killer()
    logging.disable(logging.WARNING)
    outcome = supervise(
        MakeWorker(num_parameters),
        ranks=[RankSpec(threads=1)] * NUM_RANKS,
        epochs=Epochs(num_samples=NUM_SAMPLES, batch_size=BATCH),
        settings=CoordinatorSettings(start_ranks=NUM_RANKS),
        on_event=killer,
    )
    commits = [(when_s, record) for when_s, record in killer.events if record["kind"] == "commit"]
    before = [record for when_s, record in commits if when_s < killer.killed_s]
    after_s, after = next((when_s, record) for when_s, record in commits if record["window"] == WINDOW)
    found = {
        "recovery_s": after_s - killer.killed_s,
        "noticed_s": killer.first("lost", rank=VICTIM) - killer.killed_s,
        "redone_s": killer.first("reduce", window=WINDOW, attempt=1) - killer.killed_s,
        "reduce_s": commits[WINDOW - 1][0] - killer.first("reduce", window=WINDOW - 1),
        "lost_batches": sum(record["batches"] for record in before)
        - sum(record["batches"] for _, record in commits[:WINDOW]),
        "survivors_lost": 0 if after["batches"] else 1,
        "is_exact": covers_once([record for _, record in commits]) and outcome.status == "finished",
        "was_inside": not any(
            record["kind"] == "reduced" and record["window"] == WINDOW and when_s < killer.killed_s
            for when_s, record in killer.events
        ),
    }
    if not found["was_inside"]:
        raise SystemExit("the reduction was over before the rank was killed; use more parameters")
    return found


def covers_once(commits: list[dict[str, Any]]) -> bool:
    """Return whether the committed ranges are all positions, each once."""
    ranges = sorted(each for record in commits for *_, ranges in record["work"] for each in ranges)
    ends = [0, *(stop for _, stop in ranges)]
    return [start for start, _ in ranges] == ends[:-1] and ends[-1] == NUM_SAMPLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--rivals", default="flodl,torchft")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.rivals.split(",")}
    if "torchft" in runs and find_spec("torchft") is None:
        print("torchft is left out: it is not installed (pip install torchft-nightly)")
        del runs["torchft"]
    run = {"flodl": run_flodl, "torchft": run_torchft}
    for turn in range(options.rounds):
        for name in runs:
            runs[name].append(run[name](options.parameters))
            print(f"  round {turn}  {name:8}", runs[name][-1], flush=True)
    rows, results = [], {}
    for name, found in runs.items():
        seconds = [each["recovery_s"] for each in found]
        low, high = interval(seconds)
        lost = [each["survivors_lost"] for each in found]
        rows.append([name, f"{statistics.median(seconds):.3f}", f"[{low:.3f}, {high:.3f}]"])
        rows[-1] += [f"{max(seconds):.3f}", f"{max(lost)}"]
        results[name] = {"recovery_s": statistics.median(seconds), "interval": [low, high], "rounds": found}
    print(f"\n{options.parameters:,} parameters, rank {VICTIM} of {NUM_RANKS} killed in a reduction\n")
    header = ["rival", "seconds to a commit", "95 % interval", "longest", "windows of survivors lost"]
    print(table(header, rows))
    settings = {"parameters": options.parameters, "rounds": options.rounds}
    write_results("ddp_recovery", {"settings": settings, "rivals": results}, folder=options.json)


if __name__ == "__main__":
    main()
