"""What several devices did in a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flodl.core import TrainError
from flodl.monitor.ranks import RankHistory, coverage_text, size_text


@dataclass
class RankReport:
    """One rank: its committed work, and its time in seconds since its first work.

    `train_s` is the time of computing, `wait_s` that of waiting for other ranks, and `pause_s` the rest, such
    as evaluation and saving in the calling process. `lost` says why the rank ended early, if it did.
    `batches` is how many batches it trained before the last sync.
    """

    rank: int
    device: str
    host: str = ""
    state: str = "starting"
    updates: int = 0
    samples: int = 0
    batches: int = 0
    train_s: float = 0.0
    wait_s: float = 0.0
    reduce_s: float = 0.0
    pause_s: float = 0.0
    num_bytes: int = 0
    lost: str = ""

    @property
    def total_s(self) -> float:
        """The time since its first work."""
        return self.train_s + self.wait_s + self.reduce_s + self.pause_s

    @property
    def idle(self) -> float:
        """The share of its time in which the rank neither computed nor reduced; waiting is a part of it."""
        return _share(self.wait_s + self.pause_s, self.total_s)

    @property
    def waiting(self) -> float:
        """The share of its time in which the rank waited for other ranks."""
        return _share(self.wait_s, self.total_s)

    @property
    def reducing(self) -> float:
        """The share of its time in which the rank exchanged weights or gradients and did not compute."""
        return _share(self.reduce_s, self.total_s)

    @property
    def speed(self) -> float:
        """Committed samples per second of computing."""
        return _share(self.samples, self.train_s)


@dataclass
class Coverage:
    """Which samples were trained: `epochs` complete ones, and `partial` samples of the epoch after them.

    `missing` and `repeated` count samples of all epochs; both are 0 unless something is wrong.
    """

    num_samples: int = 0
    epochs: int = 0
    partial: int = 0
    missing: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        return coverage_text(asdict(self))


@dataclass
class RanksReport:
    """How ranks trained together: `syncs` is how often they averaged weights, `divergence` how far apart they
    were at the last one.

    `samples` are committed samples of all ranks; each sample of an epoch is committed once.
    """

    policy: str
    ranks: list[RankReport] = field(default_factory=list)
    syncs: int = 0
    samples: int = 0
    divergence: float | None = None
    # Over what the weights were averaged, and why: "host: NCCL cannot be used: ranks 0 and 1 share a GPU".
    link: str = ""
    coverage: Coverage = field(default_factory=Coverage)
    history: RankHistory = field(default_factory=RankHistory, repr=False, compare=False)

    @property
    def idle(self) -> float:
        """The share of the time of all ranks in which they neither computed nor reduced."""
        return self._share_of(lambda rank: rank.wait_s + rank.pause_s)

    @property
    def waiting(self) -> float:
        """The share of the time of all ranks that was spent waiting for other ranks."""
        return self._share_of(lambda rank: rank.wait_s)

    @property
    def reducing(self) -> float:
        """The share of the time of all ranks that was spent exchanging weights or gradients."""
        return self._share_of(lambda rank: rank.reduce_s)

    @property
    def num_bytes(self) -> int:
        """The bytes that all ranks sent."""
        return sum(rank.num_bytes for rank in self.ranks)

    def _share_of(self, seconds: Any) -> float:
        return _share(sum(map(seconds, self.ranks)), sum(rank.total_s for rank in self.ranks))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON, without the timeline."""
        ranks = [
            {
                **asdict(rank),
                "share": _share(rank.samples, self.samples),
                **{name: getattr(rank, name) for name in ("speed", "idle", "waiting", "reducing")},
            }
            for rank in self.ranks
        ]
        names = (
            "policy",
            "syncs",
            "samples",
            "num_bytes",
            "idle",
            "waiting",
            "reducing",
            "divergence",
            "link",
        )
        own = {name: getattr(self, name) for name in names}
        return {**own, "coverage": asdict(self.coverage), "ranks": ranks}

    def timeline(self, path: str | os.PathLike[str]) -> Path:
        """Write when each rank computed, reduced and waited as a picture: `.svg`, or `.html` with numbers."""
        from flodl.monitor.exports import save_rank_timeline

        found = self.history.to_dict()
        if not found:
            raise TrainError("there is no timeline: no rank has started.")
        return save_rank_timeline(path, found)

    def __str__(self) -> str:
        divergence = "" if self.divergence is None else f", divergence {self.divergence:.3g}"
        lines = [
            f"{len(self.ranks)} ranks, policy {self.policy!r}: {self.syncs} syncs, {self.idle:.1%} idle "
            f"({self.waiting:.1%} waiting), {self.reducing:.1%} reducing, {size_text(self.num_bytes)} sent"
            f"{divergence}",
            f"  coverage: {self.coverage}",
        ]
        for rank in self.ranks:
            share, lost = _share(rank.samples, self.samples), f", lost: {rank.lost}" if rank.lost else ""
            lines.append(
                f"  rank {rank.rank} on {rank.device}: {rank.updates} updates, {rank.samples} samples "
                f"({share:.1%}), {rank.speed:.0f} samples/s, {rank.idle:.1%} idle "
                f"({rank.waiting:.1%} waiting), {rank.reducing:.1%} reducing, "
                f"{size_text(rank.num_bytes)} sent{lost}"
            )
        return "\n".join(lines)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
