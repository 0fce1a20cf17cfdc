"""Check that the losses of the captured step equal those of a plain torch loop bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from models import Batches, Reference
from rivals.in_flodl import Flodl


def identity(reference: Reference, batches: Batches, device: str, *, steps: int = 60) -> dict[str, Any]:
    """Compare the losses of `TrainStep` with those of a plain loop over the same graph and optimizer.

    cuDNN is restricted to deterministic algorithms; with others, even two eager runs differ.
    """
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        plain = _plain(reference, batches, device, steps)
        again = _plain(reference, batches, device, steps)
        flodl = Flodl(reference, batches, device)
        ours = torch.stack([flodl.step(*batches[turn % len(batches)]) for turn in range(steps)])
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
    report = flodl.step.report()
    return {
        "steps": steps,
        "identical": torch.equal(plain, ours),
        "first_difference": _first_difference(plain, ours),
        "eager_repeats_itself": torch.equal(plain, again),
        "tier": report.tier,
        "reason": report.reason,
        "parameters": sum(p.numel() for p in reference.module("cpu").parameters()),
        "parameters_expected": reference.num_parameters,
    }


def _plain(reference: Reference, batches: Batches, device: str, steps: int) -> torch.Tensor:
    """Return the losses of a loop without `TrainStep`, with Adam configured as `TrainStep` does on CUDA."""
    model = reference.flow(device)
    if device == "cpu":
        optimizer = torch.optim.Adam(model.parameters(), lr=reference.lr)
    else:
        lr = torch.tensor(reference.lr, device=device)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True, capturable=True)
    losses = []
    for turn in range(steps):
        x, y = batches[turn % len(batches)]
        loss = reference.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _first_difference(plain: torch.Tensor, ours: torch.Tensor) -> int | None:
    apart = (plain != ours).nonzero()
    return int(apart[0]) if len(apart) else None
