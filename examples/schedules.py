"""Learning rate schedules: warm-up before a cosine, and a rate that falls when the loss stops improving.

Prints both schedules before training, then trains the same model with each. A plateau schedule follows a
metric: `observe` passes it once per epoch; a Trainer does that itself.
"""

import torch
from torch import Tensor, nn

from flodl import TrainStep, manual_seed
from flodl.optim import CosineScheduler, PlateauScheduler, Schedule, WarmupScheduler

EPOCHS, STEPS = 12, 10
PEAK = 0.05


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def train(name: str, schedule: Schedule | PlateauScheduler) -> None:
    manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(256, 8)
    y = x.square().sum(dim=1, keepdim=True) + torch.randn(256, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK, momentum=0.9)
    step = TrainStep(model, optimizer, loss_of, schedule=schedule, clip_norm=5.0)
    rates, losses = [], []
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            step(x[:128], y[:128])
        with torch.no_grad():
            losses.append(loss_of(model, x[128:], y[128:]).item())  # on data that is not trained on
        rates.append(optimizer.param_groups[0]["lr"])
        if isinstance(schedule, PlateauScheduler):
            assert step.schedule is not None
            step.schedule.observe(losses[-1])
    print(f"\n{name}")
    print("  rate", *(f"{rate:.4f}" for rate in rates))
    print("  loss", *(f"{loss:6.2f}" for loss in losses))


def main() -> None:
    warm_up = WarmupScheduler(CosineScheduler(PEAK, 0.001, (EPOCHS - 2) * STEPS), PEAK, 2 * STEPS)
    print(warm_up.preview(EPOCHS * STEPS))
    train("warm-up for two epochs, then a cosine", warm_up)
    train(
        "halved after an epoch without improvement", PlateauScheduler(PEAK, patience=1, factor=0.5, min=0.001)
    )


if __name__ == "__main__":
    main()
