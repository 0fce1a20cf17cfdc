"""A run as users write it: a script that trains and prints the outcome.

    python signalled_run.py FOLDER TIER [compile | wait]

With `compile` it stops itself when torch begins to compile; with `wait` it prints "waiting" and waits for a
signal from outside.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

from flodl import Trainer


def main(folder: str, tier: str, moment: str = "") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    signalled: list[bool] = []

    def request_stop(_: object) -> None:
        if not signalled:
            signalled.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    if moment == "compile":
        from torch._dynamo.callback import on_compile_start

        on_compile_start(request_stop)

    def on_step_end(step: int) -> None:
        if moment == "wait" and step == 3 and not signalled:
            signalled.append(True)
            print("waiting", flush=True)
            while not trainer._run.stop_request:
                time.sleep(0.01)

    trainer = Trainer(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        lambda model, x, y: nn.functional.mse_loss(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
        tier=tier,
        device="cpu",
        checkpoint_dir=folder,
        hooks=[on_step_end],
    )
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    result = trainer.fit((x, x.prod(1, keepdim=True)), epochs=3, batch_size=16)
    print("steps", result.steps, "loss", result.metrics["loss"], "tier", result.report.tier)


if __name__ == "__main__":
    main(*sys.argv[1:])
