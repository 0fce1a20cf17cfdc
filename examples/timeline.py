"""Where does the time go? The same training with slow and with ready data, and a verdict for each."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from flodl import save_checkpoint
from flodl.monitor.timeline import Timeline

Batch = tuple[torch.Tensor, torch.Tensor]


def slow_batches(count: int) -> Iterator[Batch]:
    """Yield batches as slowly as a remote loader."""
    for _ in range(count):
        time.sleep(0.05)
        yield torch.randn(64, 32), torch.randn(64, 8)


def ready_batches(count: int) -> Iterator[Batch]:
    """Yield batches that are already in memory."""
    x, y = torch.randn(64, 32), torch.randn(64, 8)
    for _ in range(count):
        yield x, y


def train(batches: Iterator[Batch]) -> Timeline:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with Timeline(interval_s=0.02) as timeline:
        for x, y in timeline.batches(batches):  # the only line that has to change
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        with timeline.phase("save"):
            save_checkpoint("model.fdl", model.state_dict())
    return timeline


def main() -> None:
    slow, ready = train(slow_batches(20)), train(ready_batches(300))
    print("slow data: ", slow.verdict())
    print("ready data:", ready.verdict())
    print("open", slow.save_html("timeline.html", title="Slow data"))


if __name__ == "__main__":
    main()
