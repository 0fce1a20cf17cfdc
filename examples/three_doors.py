"""The same training with `fit`, with your own loop, and with `TrainStep` and `Loader`: equal losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from flodl import Loader, Trainer, TrainStep
from flodl.data import digits
from flodl.optim import CosineScheduler

EPOCHS, BATCH, LR = 2, 64, 0.1
DATA = digits(1000)
SCHEDULE = CosineScheduler(LR, 0.0, 40)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def make_trainer(hooks: tuple[Callable[..., None], ...] = ()) -> Trainer:
    return Trainer(
        make_model(),
        loss_of,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=LR, momentum=0.9),
        schedule=SCHEDULE,
        device="cpu",
        monitor=False,
        hooks=hooks,
    )


def run_fit() -> list[float]:
    """Call `fit`, and collect the losses in a hook."""
    losses: list[float] = []

    def on_step_end(loss: Tensor) -> None:
        losses.append(loss.item())

    make_trainer((on_step_end,)).fit(DATA, epochs=EPOCHS, batch_size=BATCH)
    return losses


def run_epochs() -> list[float]:
    """Write the loop yourself; the trainer starts and ends each epoch."""
    trainer = make_trainer()
    losses = []
    while trainer.epochs < EPOCHS and not trainer.stop_reason:
        for batch in trainer.epoch(DATA, batch_size=BATCH):
            losses.append(trainer.step(batch).item())
    return losses


def run_steps() -> list[float]:
    """Use only a loader and a training step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    step = TrainStep(model, optimizer, loss_of, schedule=SCHEDULE)
    loader = Loader(DATA, BATCH)
    return [step(x, y).item() for _ in range(EPOCHS) for x, y in loader]


def main() -> None:
    results = {"fit": run_fit(), "epoch and step": run_epochs(), "TrainStep and Loader": run_steps()}
    for name, losses in results.items():
        print(f"{name:<22}{len(losses)} losses, from {losses[0]:.6f} to {losses[-1]:.6f}")
    same = results["fit"] == results["epoch and step"] == results["TrainStep and Loader"]
    print("all three are", "equal, bit for bit" if same else "NOT equal")


if __name__ == "__main__":
    main()
