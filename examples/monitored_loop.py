"""Monitor a plain PyTorch loop: a line per epoch, a live page, and an archive that opens without a server."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from flodl.monitor import Monitor, read

EPOCHS, STEPS = 5, 20
CONFIG = {"optimizer": {"name": "AdamW", "lr": 1e-2}, "batch_size": 64}


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["optimizer"]["lr"])
    inputs = torch.randn(STEPS, CONFIG["batch_size"], 8)
    targets = inputs.prod(dim=-1, keepdim=True).tanh()

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "first"
        with Monitor(EPOCHS, run_dir, config=CONFIG) as monitor:
            monitor.serve(port=0)  # open the printed address while this runs
            monitor.watch(model)
            for epoch in range(EPOCHS):
                total = 0.0
                for step, (x, y) in enumerate(zip(inputs, targets)):
                    loss = nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += loss.item()
                    monitor.log_step(epoch * STEPS + step, {"train.loss": loss}, epoch=epoch)
                    monitor.progress(epoch, step + 1, STEPS)
                monitor.log(epoch, {"train.loss": total / STEPS})

        archive = monitor.save_html(run_dir / "run.html")
        table = monitor.export_csv(run_dir / "run.csv")
        kinds = [entry.event.kind for entry in read(run_dir)]
        print(f"{kinds.count('epoch')} epochs and {kinds.count('metrics')} steps in the journal")
        size_kb = archive.stat().st_size // 1000
        print(f"{archive.name} is one file of {size_kb} KB; {table.name} has a row per epoch")


if __name__ == "__main__":
    main()
