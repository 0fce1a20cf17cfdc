"""Model, data, loss, optimizer and schedule of each entry of the suite.

Batches have 64 samples (ResNet-20: 128), samples are shuffled with a seed for solo runs as well, crops and
flips are drawn per sample, and every test sample counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl.data import Normalize, RandomCrop, RandomFlip, cifar10, mnist, tiny_shakespeare
from flodl.optim import CosineScheduler, MultiStepLR, Schedule, WarmupScheduler

from . import networks

Groups = list[dict[str, Any]]
Data = tuple[Any, Any]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. `reference` is the published value of `metric`."""

    name: str
    make_model: Callable[[], nn.Module]
    load: Callable[[], Data]
    loss_of: Callable[..., Any]
    optimizer: Callable[[Groups], torch.optim.Optimizer]
    epochs: int
    metric: str
    reference: float | None
    batch_size: int = 64
    # Gets the number of all updates.
    schedule: Callable[[int], Schedule] | None = None
    augment: tuple[Any, ...] = ()
    normalize: tuple[Any, ...] = ()
    higher_is_better: bool = field(default=True)


def folder() -> Path:
    """Return the folder with the datasets: FLODL_DATA, or shared/data next to the repository."""
    return Path(os.environ.get("FLODL_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


def load_mnist() -> Data:
    train, test = (mnist(folder(), train=part, dtype=torch.uint8) for part in (True, False))
    return train, test


def load_mnist_images() -> Data:
    train, test = load_mnist()
    return (train[0],), (test[0],)


def load_cifar10() -> Data:
    train, test = (cifar10(folder(), train=part, dtype=torch.uint8) for part in (True, False))
    return train, test


def load_characters() -> Data:
    train, test = (tiny_shakespeare(folder(), 128, split=part) for part in ("train", "validation"))
    return train, test


def classify(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), {"accuracy": (scores.argmax(1) == y).float().mean()}


def reconstruct(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), x)


def next_character(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x.long()).flatten(0, 1), y.long().flatten())


def adam(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=1e-3)


def adam_gpt(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=3e-4)


def rmsprop(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=2e-3)


def sgd(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-4)


def drops(updates: int) -> Schedule:
    return MultiStepLR(0.1, [updates // 2, updates * 3 // 4], 0.1)


def warmup_and_cosine(updates: int) -> Schedule:
    warm = updates // 5
    return WarmupScheduler(CosineScheduler(3e-4, 1e-5, max(1, updates - warm)), target=3e-4, warm=warm)


DIGITS = (Normalize([0.1307], [0.3081]),)
COLORS = (Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),)
# The autoencoder reproduces pixels from 0 to 1.
PIXELS = (Normalize([0.0], [1.0]),)

RECIPES = {
    each.name: each
    for each in (
        Recipe(
            "logistic", networks.logistic, load_mnist, classify, adam, 5, "accuracy", 0.92, normalize=DIGITS
        ),
        Recipe("mlp", networks.mlp, load_mnist, classify, adam, 5, "accuracy", 0.975, normalize=DIGITS),
        Recipe("lenet", networks.lenet, load_mnist, classify, adam, 5, "accuracy", 0.99, normalize=DIGITS),
        Recipe(
            "resnet20",
            networks.resnet20,
            load_cifar10,
            classify,
            sgd,
            200,
            "accuracy",
            0.9125,
            batch_size=128,
            schedule=drops,
            augment=(RandomCrop(4), RandomFlip()),
            normalize=COLORS,
        ),
        Recipe(
            "char-rnn",
            networks.CharRnn,
            load_characters,
            next_character,
            rmsprop,
            50,
            "loss",
            1.5,
            higher_is_better=False,
        ),
        Recipe(
            "gpt-nano",
            networks.GptNano,
            load_characters,
            next_character,
            adam_gpt,
            50,
            "loss",
            1.75,
            schedule=warmup_and_cosine,
            higher_is_better=False,
        ),
        Recipe(
            "conv-ae",
            networks.conv_ae,
            load_mnist_images,
            reconstruct,
            adam,
            5,
            "loss",
            None,
            normalize=PIXELS,
            higher_is_better=False,
        ),
    )
}
