"""All rivals, and how one run of them is measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from task import Job, evaluate
from throttle import remove_groups

from . import in_flodl, in_torch, in_torchft, processes


@dataclass(frozen=True)
class Entry:
    """A rival: its function, the number of its ranks, and its learning rate, chosen with `--tune`."""

    train: Callable[..., Any] | None
    size: int = 3
    lr: float = 0.05
    # A split by speed is plain DDP if the ranks are equal.
    is_split: bool = False

    def fits(self, scenario: str) -> bool:
        return not (scenario == "equal" and self.is_split)


RIVALS = {
    "ddp": Entry(in_torch.ddp),
    "ddp fast ranks": Entry(in_torch.ddp, size=2, is_split=True),
    "ddp split by speed": Entry(in_torch.split, is_split=True),
    "ddp + join": Entry(in_torch.join, is_split=True),
    "post-local sgd": Entry(in_torch.post_local),
    "torchft local sgd": Entry(in_torchft.local_sgd),
    "solo": Entry(in_torch.solo, size=1, lr=0.025),
    "flodl barrier": Entry(None),
    "flodl cadence": Entry(None),
    "flodl async": Entry(None),
}


def available(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the rivals that can run here, and why the others cannot."""
    missing = {}
    if "torchft local sgd" in names and find_spec("torchft") is None:
        missing["torchft local sgd"] = "torchft is not installed (pip install torchft-nightly)"
    return [name for name in names if name not in missing], missing


def run_job(job: Job, *, target: float) -> dict[str, Any]:
    """Run a rival once, and return what was measured."""
    entry = RIVALS[job.rival]
    try:
        if entry.train is None:
            facts = in_flodl.run(job)
            ranks = _read_ranks(job, 3)
        else:
            _run_peer(job, entry)
            ranks = _read_ranks(job, entry.size)
            facts = {
                "started_s": min(rank["started_s"] for rank in ranks),
                "ended_s": max(rank["ended_s"] for rank in ranks),
                "syncs": max(rank["syncs"] for rank in ranks),
                "num_bytes": sum(rank["num_bytes"] for rank in ranks),
            }
        found = _measure(job, facts, ranks, target)
    finally:
        remove_groups()
    shutil.rmtree(job.folder)
    return found


def _run_peer(job: Job, entry: Entry) -> None:
    if job.rival != "torchft local sgd":
        processes.run(entry.train, job, entry.size)
        return
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=entry.size, join_timeout_ms=1000)
    try:
        processes.run(entry.train, job, entry.size, lighthouse.address())
    finally:
        lighthouse.shutdown()


def _read_ranks(job: Job, size: int) -> list[dict[str, Any]]:
    return [json.loads((Path(job.folder) / f"rank{rank}.json").read_text()) for rank in range(size)]


def _measure(job: Job, facts: dict[str, Any], ranks: list[dict[str, Any]], target: float) -> dict[str, Any]:
    started_s, ended_s = facts["started_s"], facts["ended_s"]
    settled_s = facts.get("settled_s", started_s)
    curve = evaluate(job, torch.load(Path(job.folder) / "snapshots.pt"))
    if "samples_at" in facts:
        known = facts["samples_at"]
        curve = [(when_s, known[version], value) for when_s, version, value in curve if version in known]
    reached = [when_s - started_s for when_s, _, value in curve if value >= target]
    wall_s = ended_s - started_s
    return {
        "wall_s": wall_s,
        "samples_per_s": job.num_samples / wall_s,
        "idle": [_idle(rank["spans"], started_s, ended_s) for rank in ranks],
        "idle_settled": [_idle(rank["spans"], settled_s, ended_s) for rank in ranks],
        "syncs": facts["syncs"],
        "num_bytes": facts["num_bytes"],
        "divergence": facts.get("divergence"),
        "accuracy": curve[-1][2],
        "to_target_s": reached[0] if reached else None,
        "curve": [(round(when_s - started_s, 3), seen, round(value, 4)) for when_s, seen, value in curve],
    }


def _idle(spans: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return the share of this time in which a rank did not work on a step."""
    busy_s = sum(max(0.0, min(stop, end_s) - max(start, begin_s)) for start, stop in spans)
    return 1.0 - busy_s / (end_s - begin_s)
