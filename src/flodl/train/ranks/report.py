"""What several devices did in a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .settings import RankSettings


@dataclass
class RankReport:
    """One rank: its committed work, and its time in seconds. `lost` says why it ended early, if it did."""

    rank: int
    device: str
    updates: int = 0
    samples: int = 0
    train_s: float = 0.0
    wait_s: float = 0.0
    reduce_s: float = 0.0
    num_bytes: int = 0
    lost: str = ""

    @property
    def idle(self) -> float:
        """The share of its time in which the rank waited for others."""
        total = self.train_s + self.wait_s + self.reduce_s
        return self.wait_s / total if total else 0.0


@dataclass
class RanksReport:
    """How ranks trained together: `syncs` is how often they met, `divergence` how far apart they were then.

    `samples` are committed samples of all ranks; each sample of an epoch is committed once.
    """

    policy: str
    ranks: list[RankReport] = field(default_factory=list)
    syncs: int = 0
    samples: int = 0
    divergence: float | None = None
    # Over what the weights were averaged, and why: "host: NCCL cannot be used: ranks 0 and 1 share a GPU".
    link: str = ""

    @property
    def idle(self) -> float:
        """The share of the time of all ranks that was spent waiting."""
        total = sum(rank.train_s + rank.wait_s + rank.reduce_s for rank in self.ranks)
        return sum(rank.wait_s for rank in self.ranks) / total if total else 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.ranks)} ranks, policy {self.policy!r}: {self.syncs} syncs, {self.idle:.1%} idle"]
        for rank in self.ranks:
            lost = f", lost: {rank.lost}" if rank.lost else ""
            lines.append(
                f"  rank {rank.rank} on {rank.device}: {rank.updates} updates, {rank.samples} samples, "
                f"{rank.idle:.1%} idle, {rank.num_bytes} bytes sent{lost}"
            )
        return "\n".join(lines)


class Recorder:
    """Adds up the events of a supervisor."""

    def __init__(self, settings: RankSettings) -> None:
        self._report = RanksReport(settings.policy)
        self._ranks: dict[int, RankReport] = {}
        self._devices = [str(device) for device in settings.devices]
        # Committed samples of the current epoch, for the progress that is shown.
        self.samples_in_epoch = 0

    def on_event(self, record: dict[str, Any]) -> None:
        """Take a record of the run log."""
        kind, rank = record["kind"], record.get("rank")
        if kind == "started":
            self._ranks[record["rank"]] = RankReport(record["rank"], record["device"])
        elif kind == "commit" and record["batches"]:
            self._commit(record)
        elif kind == "link":
            self._report.link = f"{record['backend']}: {record['reason']}"
        elif rank in self._ranks and kind in ("arrived", "reduced", "lost", "evict"):
            getattr(self, f"_{kind}")(self._ranks[rank], record)

    def _commit(self, record: dict[str, Any]) -> None:
        self._report.syncs += 1
        for rank, _, batches, ranges in record["work"]:
            samples = sum(stop - start for start, stop in ranges)
            self._report.samples += samples
            if rank in self._ranks:
                self._ranks[rank].updates += batches
                self._ranks[rank].samples += samples

    def _arrived(self, rank: RankReport, record: dict[str, Any]) -> None:
        rank.train_s += (record["took_ms"] or 0.0) / 1000.0
        rank.wait_s += record["wait_ms"] / 1000.0

    def _reduced(self, rank: RankReport, record: dict[str, Any]) -> None:
        rank.wait_s += record.get("wait_ms", 0.0) / 1000.0
        rank.reduce_s += record.get("reduce_ms", 0.0) / 1000.0
        rank.num_bytes += record.get("num_bytes", 0)
        if record.get("divergence") is not None:
            self._report.divergence = record["divergence"]

    def _lost(self, rank: RankReport, record: dict[str, Any]) -> None:
        rank.lost = rank.lost or record["reason"]

    _evict = _lost

    def report(self) -> RanksReport:
        """Return the report so far."""
        self._report.ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        return self._report
