"""A run that pauses in the middle, so that others can try to use its folder.

    python held_run.py FOLDER NUM_WORKERS

Prints "waiting", and continues when it reads a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from flodl import Loader, Trainer


def main(folder: str, num_workers: int) -> None:
    torch.set_num_threads(1)

    def on_step_end(step: int) -> None:
        if step == 3:
            # Reading the file, as when the folder is copied, does not release the lock.
            (Path(folder) / "lock").read_text()
            print("waiting", flush=True)
            sys.stdin.readline()

    trainer = Trainer(
        nn.Linear(2, 1),
        lambda model, x: model(x).square().mean(),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        tier="eager",
        device="cpu",
        monitor=False,
        checkpoint_dir=folder,
        hooks=[on_step_end],
    )
    data = Loader(list(torch.ones(12, 2)), 2, mode="streaming", num_workers=num_workers)
    print("steps", trainer.fit(data, epochs=2).steps, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
