"""Trains ranks wherever it was launched. Each trained position adds 1 to its weight."""

import json
import os
import sys
import time
from pathlib import Path

import torch

from flodl.distributed.coordination import CoordinatorSettings, SuspicionSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.placement import launched_placement, supervise
from flodl.distributed.ranks import Trained
from flodl.distributed.reduction import FlatState
from flodl.distributed.supervisor import SupervisorSettings

FOLDER = Path(".")
OPTIONS = {"num_samples": 240, "batch_size": 4, "num_epochs": 1, "batch_ms": 1.0, "save_every": 0, "fail": ""}


def save_file():
    return FOLDER / "save.json"


class CountingWorker:
    def __init__(self, info):
        if OPTIONS["fail"] == "worker":
            raise ValueError("this worker cannot be created")
        self.info = info
        self.weights = torch.zeros(OPTIONS["num_samples"])
        if save_file().exists():
            self.weights.copy_(torch.tensor(json.loads(save_file().read_text())["weights"]))
        self.state = FlatState([self.weights])

    def train(self, lease, position, *, should_stop):
        started, steps, size = time.perf_counter(), 0, OPTIONS["batch_size"]
        hurry = (FOLDER / "hurry").exists()
        for start, stop in lease.ranges:
            for first in range(start, stop, size):
                if should_stop():
                    break
                time.sleep((1.0 if hurry else OPTIONS["batch_ms"]) / 1000.0)
                self.weights[first : min(first + size, stop)] += 1.0
                steps += 1
        return Trained(steps, 1000.0 * (time.perf_counter() - started), loss=1.0)

    def donate(self):
        return b"optimizer"

    def receive(self, donated):
        assert donated == b"optimizer"

    def save(self, point, consensus, outer, coordinator):
        if OPTIONS.get("show_listeners"):
            (FOLDER / "listeners").write_text("\n".join(listeners()))
        return {"weights": consensus.tolist(), "state": coordinator}


def listeners():
    """The addresses at which ranks and the supervisor listen; not those of torchrun itself."""
    import psutil

    processes = psutil.Process().parent().children(recursive=True)
    found = [each for process in processes for each in process.net_connections("tcp")]
    return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})


def keep(report):
    part = save_file().with_suffix(".part")
    part.write_text(json.dumps(report.value))
    part.replace(save_file())


def main():
    (FOLDER / f"supervisor-{os.getpid()}").touch()
    resume = json.loads(save_file().read_text())["state"] if save_file().exists() else None
    if resume is not None:
        print("resumed at", resume["committed"], flush=True)
    outcome = supervise(
        CountingWorker,
        epochs=Epochs(
            num_samples=OPTIONS["num_samples"],
            batch_size=OPTIONS["batch_size"],
            num_epochs=OPTIONS["num_epochs"],
        ),
        settings=CoordinatorSettings(
            save_every=OPTIONS["save_every"],
            suspicion=SuspicionSettings(
                floor_ms=OPTIONS.get("floor_ms", 30000.0), unknown_ms=60000.0, first_reduce_ms=30000.0
            ),
        ),
        supervision=SupervisorSettings(digests=True, start_s=60.0, end_s=5.0),
        resume_state=resume,
        on_save=keep,
        run_log=FOLDER / f"run-{time.time_ns()}.jsonl",
    )
    print(outcome.status, outcome.committed_batches, launched_placement() and launched_placement().on)
    print("ranks", sorted(outcome.ranks), flush=True)


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    OPTIONS |= json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    main()
