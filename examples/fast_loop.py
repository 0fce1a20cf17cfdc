"""The same loop in plain PyTorch and with `TrainStep`: equal losses, and on CUDA one launch per step."""

from __future__ import annotations

import torch
from torch import nn

from flodl import TrainStep

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4)).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def main() -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    batches = [
        (
            torch.randn(64, 16, device=DEVICE, generator=generator),
            torch.randn(64, 4, device=DEVICE, generator=generator),
        )
        for _ in range(40)
    ]

    model, optimizer = build()
    plain = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        plain.append(loss.detach())

    model, optimizer = build()
    step = TrainStep(model, optimizer, loss_of)
    with_step = [step(x, y) for x, y in batches]

    same = torch.equal(torch.stack(plain), torch.stack(with_step))
    print(f"{len(batches)} losses, {'all equal' if same else 'NOT equal'}; last {with_step[-1].item():.4f}")
    print(step.report())


if __name__ == "__main__":
    main()
