"""Starting the ranks of rivals, and collecting what they measured."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from task import NUM_SNAPSHOTS, Data, Job, Recorder, make_model, make_optimizer, make_throttle, write_rank
from throttle import Throttle
from torch import Tensor, nn

TIMEOUT = timedelta(seconds=300)


@dataclass
class Rank:
    """What a rival needs on one rank."""

    job: Job
    rank: int
    size: int
    store: dist.Store
    port: int
    lighthouse: str
    data: Data
    throttle: Throttle
    model: nn.Module
    optimizer: torch.optim.Optimizer
    recorder: Recorder
    started_s: float = 0.0
    ended_s: float = 0.0
    syncs: int = 0
    # The bytes that this rank sends.
    num_bytes: int = 0

    def meet(self, name: str) -> None:
        """Wait for all ranks."""
        if self.store.add(name, 1) == self.size:
            self.store.set(f"{name} all", "yes")
        self.store.wait([f"{name} all"], TIMEOUT)

    def loss_of(self, model: nn.Module, epoch: int, start: int, stop: int) -> Tensor:
        """Return the loss of the samples at these positions; the rank is as slow as it should be."""
        self.throttle.begin()
        x, y = self.data.batch(epoch, start, stop)
        loss = nn.functional.cross_entropy(model(x), y)
        self.throttle.pause(len(x))
        return loss

    def count_sync(self) -> None:
        """Count an average of all parameters over all ranks, as a ring."""
        self.syncs += 1
        num = sum(parameter.numel() for parameter in self.model.parameters())
        self.num_bytes += 2 * 4 * num * (self.size - 1) // self.size


Rival = Callable[[Rank], None]


def run(rival: Rival, job: Job, size: int, lighthouse: str = "") -> dict[str, Any]:
    """Let `size` ranks train the job, and return the facts."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])
    processes = [
        context.Process(target=_main, args=(rival, job, rank, size, store.port, lighthouse), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        if process.exitcode != 0:
            for other in processes:
                other.kill()
            raise SystemExit(f"a rank of {job.rival} ended with code {process.exitcode}")
    return {}


def _main(rival: Rival, job: Job, rank: int, size: int, port: int, lighthouse: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    data, model = Data(job), make_model(job)
    found = Rank(
        job,
        rank,
        size,
        store,
        port,
        lighthouse,
        data,
        make_throttle(job, rank, data),
        model,
        make_optimizer(job, model),
        Recorder(every=max(1, job.num_samples // NUM_SNAPSHOTS)),
    )
    data.order(0)
    rival(found)
    found.throttle.leave()
    if rank == 0:
        found.recorder.write(Path(job.folder) / "snapshots.pt")
    facts = {"started_s": found.started_s, "syncs": found.syncs, "num_bytes": found.num_bytes}
    write_rank(job, rank, found.throttle.spans, **facts, ended_s=found.ended_s)
    found.meet("end")
