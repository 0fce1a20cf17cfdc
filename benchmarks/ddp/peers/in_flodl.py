"""flodl: cadence and async windows under a supervisor."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from task import NUM_RANKS, Data, Job, LossOf, Recorder, make_model, make_optimizer, make_throttle, write_rank
from torch import Tensor, nn

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import CoordinatorSettings, MeetingSettings, Position, SavePoint
from flodl.distributed.coverage import Epochs, Lease
from flodl.distributed.ranks import RankInfo, Trained
from flodl.distributed.reduction import FlatState, Reducer
from flodl.distributed.supervisor import RankSpec, supervise
from flodl.engine import TrainStep

# With a quorum, two of three ranks are enough for a meeting; a late one brings its work to the next.
MEETINGS = {
    "flodl barrier": MeetingSettings(quorum=1.0),
    "flodl cadence": MeetingSettings(quorum=0.6),
    "flodl async": MeetingSettings(quorum=0.6, max_ahead=1),
}


def train_step(job: Job, loss_of: LossOf) -> TrainStep:
    model = make_model(job)
    return TrainStep(model, make_optimizer(job, model), loss_of)


class ThrottledWorker:
    """Trains leases with a `TrainStep`."""

    def __init__(self, info: RankInfo, job: Job) -> None:
        self._job, self._data = job, Data(job)
        self._throttle = make_throttle(job, info.rank, self._data, train_step)
        model = make_model(job)
        self._step = TrainStep(model, make_optimizer(job, model), self._loss_of)
        self.state = FlatState.of(model)
        self._data.order(0)
        atexit.register(lambda: write_rank(job, info.rank, self._throttle.spans))

    def _loss_of(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        self._throttle.pause(len(x))
        return loss

    def train(self, lease: Lease, position: Position, *, should_stop: Callable[[], bool]) -> Trained:
        started_s, steps, size = time.perf_counter(), 0, self._job.batch_size
        for start, stop in lease.ranges:
            for first in range(start, stop, size):
                if should_stop():
                    break
                self._throttle.begin()
                self._step(*self._data.batch(lease.epoch, first, min(first + size, stop)))
                steps += 1
        loss = self._step.means()["loss"].item() if steps else 0.0
        self._step.reset_means()
        return Trained(steps, 1000.0 * (time.perf_counter() - started_s), loss=loss)

    def donate(self) -> bytes:
        return b""

    def receive(self, donated: bytes) -> None:
        pass

    def save(
        self, point: SavePoint, consensus: Tensor, outer: dict[str, Any], coordinator: dict[str, Any]
    ) -> object:
        return None


class RecordingReducer(Reducer):
    """Keeps the consensus of some versions. Which samples are in it is known to the supervisor."""

    def __init__(self, state: FlatState, job: Job, **options: Any) -> None:
        super().__init__(state, **options)
        self._job = job
        self._recorder: Recorder | None = None

    def rebuild(self, store: Any, generation: int, rank: int, members: Any, timeout_s: float) -> None:
        super().rebuild(store, generation, rank, members, timeout_s)
        if rank == 0 and self._recorder is None:
            recorder = self._recorder = Recorder(every=1)
            atexit.register(lambda: recorder.write(Path(self._job.folder) / "snapshots.pt"))

    def commit(self) -> None:
        super().commit()
        if self._recorder is not None:
            self._recorder.take(self.version, self.consensus.clone)


@dataclass(frozen=True)
class MakeWorker:
    job: Job

    def __call__(self, info: RankInfo) -> ThrottledWorker:
        torch.set_num_threads(1)
        return ThrottledWorker(info, self.job)


@dataclass(frozen=True)
class MakeReducer:
    job: Job

    def __call__(self, state: FlatState, *, keep_local: bool) -> Reducer:
        return RecordingReducer(state, self.job, keep_local=keep_local)


def run(job: Job) -> dict[str, Any]:
    """Train the job, and return its facts."""
    events: list[tuple[float, dict[str, Any]]] = []
    outcome = supervise(
        MakeWorker(job),
        ranks=[RankSpec(threads=1)] * NUM_RANKS,
        epochs=Epochs(
            num_samples=job.samples_per_epoch, batch_size=job.batch_size, num_epochs=job.num_epochs
        ),
        settings=CoordinatorSettings(
            start_ranks=NUM_RANKS, meeting=MEETINGS[job.rival], cadence=CadenceSettings(anchor=job.anchor)
        ),
        reducer=MakeReducer(job),
        on_event=lambda record: events.append((time.monotonic(), record)),
    )
    started_s = next(when for when, record in events if record["kind"] == "plan")
    commits = [(when, record) for when, record in events if record["kind"] == "commit"]
    trained = [(when, record) for when, record in commits if record["batches"]]
    divergences = [
        record["divergence"]
        for _, record in events
        if record["kind"] == "reduced" and record["divergence"] is not None
    ]
    committed, at_version = 0, {}
    for _, record in commits:
        committed += record["samples"]
        at_version[record["version"]] = committed
    return {
        "started_s": started_s,
        "ended_s": trained[-1][0],
        "settled_s": trained[min(1, len(trained) - 1)][0],
        "syncs": len(trained),
        "num_bytes": sum(totals.num_bytes for totals in outcome.ranks.values()),
        "divergence": max(divergences, default=None),
        "samples_at": at_version,
        "events": [{"at_s": when - started_s, **record} for when, record in events],
    }
