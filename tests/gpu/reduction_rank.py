"""One of several ranks that share a device, for test_gradient_reduction_gpu.py.

    python reduction_rank.py RANK NUM_RANKS FOLDER

It trains on the eager and on the captured tier; FOLDER/RANK.pt gets the weights and what else is compared.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flodl.distributed.gradients import GradientReducer
from flodl.engine import TrainStep


def train(tier: str, rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
    reducer, num_calls = GradientReducer(dist.group.WORLD), 0

    def reduce(gradients, weight) -> None:
        nonlocal num_calls
        num_calls += 1
        reducer(gradients, weight)

    step = TrainStep(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda model, x, y: (model(x) - y).square().mean(),
        clip_norm=0.1,
        tier=tier,
        reduce_gradients=reduce,
    )
    generator = torch.Generator("cuda").manual_seed(rank + 1)
    weights = []
    for number in range(40):
        # Rank 1 has smaller batches than rank 0, and every rank a ragged one at another time.
        size = 7 if number == 20 + rank else 32 >> rank
        x = torch.randn(size, 16, device="cuda", generator=generator)
        y = torch.randn(size, 4, device="cuda", generator=generator)
        if number == 30 and rank == 0:
            x = x * torch.nan
        step(x, y)
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu())
    return {
        "weights": torch.stack(weights),
        "num_calls": num_calls,
        "updates": step.updates,
        "num_skipped": int(step.num_skipped),
        "tier": step.tier,
        "report": str(step.report()),
    }


def main(rank: int, num_ranks: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=120),
    )
    torch.save({tier: train(tier, rank) for tier in ("eager", "captured")}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
