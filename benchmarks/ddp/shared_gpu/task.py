"""What all processes on the GPU train: ResNet-20 on images that are resident on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from suite.networks import resnet20
from suite.recipes import RECIPES, classify, sgd
from torch import Tensor, nn

from flodl import Loader
from flodl.engine import TrainStep

RECIPE = RECIPES["resnet20"]


@dataclass(frozen=True)
class Task:
    """The settings that a measurement and its rivals have in common."""

    device: str
    tier: str
    batch_size: int
    precision: str = "fp32"


def random_images(num: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(256, (num, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (num,))


def make_loader(task: Task, num_samples: int, *, device: str | None) -> Loader:
    augment = [*RECIPE.augment, *RECIPE.normalize]
    data: Any = random_images(num_samples)
    return Loader(data, task.batch_size, shuffle=True, seed=0, augment=augment, drop_last=True, device=device)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return resnet20()


def make_step(task: Task) -> TrainStep:
    model = make_model().to(task.device)
    optimizer = sgd([{"params": list(model.parameters())}])
    return TrainStep(model, optimizer, classify, tier=task.tier, precision=task.precision)  # type: ignore[arg-type]
