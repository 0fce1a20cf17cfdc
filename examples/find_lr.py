"""Look for a learning rate before training: the loss of a copy of the model while the rate rises."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import flodl
from flodl import Trainer
from flodl.data import digits


def compute_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(images), labels)


def make_trainer(lr: float) -> Trainer:
    flodl.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
    return Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=lr),
        device="cpu",
        monitor=False,
        seed=0,
    )


if __name__ == "__main__":
    data = digits(1500, seed=0)
    found = make_trainer(1e-3).find_lr(data, 64, max_lr=10.0)
    print(found)
    picture = Path(tempfile.gettempdir()) / "find_lr.svg"
    found.svg(picture)
    print(f"The curve is in {picture}")

    assert found.suggestion is not None
    for name, lr in (("much lower", found.suggestion / 100), ("suggested", found.suggestion)):
        result = make_trainer(lr).fit(data, epochs=2, batch_size=64)
        print(f"{name:<11} lr={lr:.1e}: loss {result.metrics['loss']:.3f} after two epochs")
