"""Stop a run with SIGTERM, then with SIGKILL, and get the same numbers as an uninterrupted run.

The script starts itself in other processes, which it can stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import digits

EPOCHS = 3


def train(folder: str) -> None:
    """Train in `folder`, resuming if possible; other arguments are the step and the number of a signal."""
    torch.manual_seed(0)

    def on_step_end(step: int) -> None:
        # Not values of this function: a hook with other settings would be reported when the run resumes.
        if str(step) == sys.argv[2]:
            os.kill(os.getpid(), int(sys.argv[3]))

    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    trainer = Trainer(
        nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)),
        loss_of,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3),
        tier="eager",
        device="cpu",
        monitor=False,
        checkpoint_dir=folder,
        save_every_steps=5,
        hooks=[on_step_end],
    )
    result = trainer.fit(digits(1000), epochs=EPOCHS, batch_size=64, eval_data=digits(200, seed=1))
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    print(f"{result.steps} steps, eval_loss {result.metrics['eval_loss']:.9f}, weights {weights.sum():.9f}")


def start(folder: Path, signal_step: int = 0, signal_number: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, str(folder), str(signal_step), str(int(signal_number))]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        uninterrupted = start(Path(root) / "uninterrupted").stdout.strip()
        print(f"uninterrupted: {uninterrupted}")
        folder = Path(root) / "run"
        print("SIGTERM at step 11: exit code", start(folder, 11, signal.SIGTERM).returncode)
        print("SIGKILL at step 37: exit code", start(folder, 37, signal.SIGKILL).returncode)
        resumed = start(folder).stdout.strip()
        print(f"stopped twice: {resumed}")
        print("they are", "the same" if resumed == uninterrupted else "NOT the same")


if __name__ == "__main__":
    if sys.argv[1:]:
        train(sys.argv[1])
    else:
        main()
