"""Train on digits, stop in the middle of an epoch, and resume with identical losses."""

from __future__ import annotations

import json

import torch
from torch import nn

from flodl import TrainStep
from flodl.data import Chance, Loader, RandomCrop, digits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 60


def noise(batch: tuple[torch.Tensor, torch.Tensor], chance: Chance) -> tuple[torch.Tensor, torch.Tensor]:
    """A custom augmentation: add a little noise, with a different strength for each image."""
    images, labels = batch
    strength = 0.1 * chance.uniform().view(-1, 1, 1, 1)
    return images + strength * chance.normal(*images.shape[1:]), labels


def build() -> tuple[Loader, TrainStep]:
    torch.manual_seed(0)
    loader = Loader(digits(2000), batch_size=64, seed=1, device=DEVICE, augment=[RandomCrop(2), noise])
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    return loader, TrainStep(model, optimizer, loss_of, tier="eager")


def train(loader: Loader, step: TrainStep, losses: list[torch.Tensor], until: int) -> None:
    """Run steps until there are `until` losses, starting anywhere in an epoch."""
    while len(losses) < until:
        for x, y in loader:
            losses.append(step(x, y))
            if len(losses) == until:
                break


def main() -> None:
    loader, step = build()
    print(loader)
    uninterrupted: list[torch.Tensor] = []
    train(loader, step, uninterrupted, STEPS)

    loader, step = build()
    losses: list[torch.Tensor] = []
    train(loader, step, losses, 37)
    saved = json.dumps(loader.state_dict())
    print(f"stopped after {len(losses)} steps: epoch {loader.epoch}, {loader.position} samples into it")

    loader, _ = build()  # a new process would also load the weights from a checkpoint
    loader.load_state_dict(json.loads(saved))
    train(loader, step, losses, STEPS)
    same = torch.equal(torch.stack(uninterrupted), torch.stack(losses))
    print(f"{STEPS} losses, {'all equal' if same else 'NOT equal'}; last {losses[-1].item():.4f}")


if __name__ == "__main__":
    main()
