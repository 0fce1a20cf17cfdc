"""Runs that are killed around a save and resumed, each process a fork of this one.

    python killed_records.py FOLDER

Prints one JSON object for each case: the history of the last process and what every record of the run says.
"""

from __future__ import annotations

import csv
import gc
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flodl import Monitor, Trainer
from flodl.monitor.exports import export_csv, write_log
from flodl.monitor.sinks import Csv
from flodl.monitor.snapshot import snapshot, summary

EPOCHS, STEPS = 3, 4
KILL, TERM = signal.SIGKILL, signal.SIGTERM
# Where the first process ends, with which signal, and whether the program has a monitor of its own.
CASES = {
    "before the first save": ("on_epoch_end", 0, KILL, False),
    "in the end of the second epoch": ("on_epoch_end", 1, KILL, False),
    "after a save within the end of the second epoch": ("save in on_epoch_end", 1, KILL, False),
    "after a save within the end of the last epoch": ("save in on_epoch_end", 2, KILL, False),
    "after the first save": ("on_save", STEPS, KILL, False),
    "after the second save": ("on_save", 2 * STEPS, KILL, False),
    "after the last save": ("on_save", 3 * STEPS, KILL, False),
    "in the next epoch": ("on_step_end", 2 * STEPS + 1, KILL, False),
    "at the end": ("on_end", 0, KILL, False),
    "SIGTERM in the end of the last epoch": ("on_epoch_end", 2, TERM, False),
    "after the second save, with a monitor": ("on_save", 2 * STEPS, KILL, True),
    "after a save within the second epoch, with a monitor": ("save in on_epoch_end", 1, KILL, True),
    "after the last save, with a monitor": ("on_save", 3 * STEPS, KILL, True),
}


class Killed:
    """Ends the process at one moment of its first start."""

    def __init__(self, moment: str, number: int, end: int) -> None:
        self.moment, self.number, self.end = moment, number, end

    def check(self, moment: str, number: int) -> None:
        if (moment, number) == (self.moment, self.number):
            os.kill(os.getpid(), self.end)

    def on_step_end(self, step: int) -> None:
        self.check("on_step_end", step)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        if self.moment == "save in on_epoch_end" and epoch == self.number:
            trainer.save()
        self.check("on_epoch_end", epoch)
        self.check("save in on_epoch_end", epoch)

    def on_save(self, step: int) -> None:
        self.check("on_save", step)

    def on_end(self) -> None:
        self.check("on_end", 0)


def train(folder: Path, hook: Killed | None, has_monitor: bool) -> None:
    torch.manual_seed(0)
    monitor = None
    if has_monitor:
        monitor = Monitor(EPOCHS, folder, console=False, resources=False, sinks=[Csv(folder / "sink.csv")])
    trainer = Trainer(
        nn.Linear(3, 1),
        lambda model, x, y: nn.functional.mse_loss(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        tier="eager",
        device="cpu",
        seed=1,
        checkpoint_dir=folder,
        monitor=monitor,
        hooks=[] if hook is None else [hook],
    )
    x = torch.randn(4 * STEPS, 3, generator=torch.Generator().manual_seed(0))
    result = trainer.fit((x, x.sum(1, keepdim=True)), epochs=EPOCHS, batch_size=4)
    if monitor is not None:
        monitor.finish()
    (folder / "history.json").write_text(json.dumps(result.history))


def records_of(folder: Path) -> dict[str, Any]:
    export_csv(folder / "run.csv", folder)
    write_log(folder / "run.log", folder)
    history = json.loads((folder / "history.json").read_text())
    found = {
        "history": [[row["epoch"], row["loss"]] for row in history],
        "journal": [[row["epoch"], row["metrics"]["loss"]] for row in snapshot(folder)["history"]],
        "csv": rows_in(folder / "run.csv"),
        "log": [line.split()[1] for line in (folder / "run.log").read_text().splitlines()[1:-1]],
        "best": summary(folder)["metrics"]["loss"]["epoch"],
        "compared": summary(folder)["metrics"]["loss"]["best"],
        "state": summary(folder)["state"],
    }
    sink = folder / "sink.csv"
    return {**found, "sink": rows_in(sink)} if sink.exists() else found


def rows_in(path: Path) -> list[list[Any]]:
    with open(path, newline="") as file:
        return [
            [int(row["epoch"]), float(row["loss"])] for row in csv.DictReader(file) if not row.get("step")
        ]


def main(root: Path) -> None:
    from interrupted_runs import (
        in_a_process,
    )  # next to this script; pytest, which collects it, has no such path

    torch.set_num_threads(1)  # forked processes may not share a pool of threads
    gc.freeze()
    for name, (moment, number, end, has_monitor) in CASES.items():
        folder = root / name
        folder.mkdir()
        hook = Killed(moment, number, end)
        codes = [in_a_process(partial(train, folder, one, has_monitor)) for one in (hook, None)]
        print(json.dumps({"name": name, "codes": codes, **records_of(folder)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
