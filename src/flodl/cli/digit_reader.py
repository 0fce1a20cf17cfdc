"""The job of `fdl quickstart`, written as any user of flodl would write it: data, a model, a trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, SoftmaxRouter, Trainer
from flodl.data import digits
from flodl.optim import CosineScheduler

Data = tuple[Tensor, Tensor]  # images and labels


class Conv(nn.Sequential):
    """Look for 3×3 patterns."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        layer = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        super().__init__(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def build_reader() -> Graph:
    """Build a model that reads digits: an eye, two glances side by side, two experts that share an answer."""
    eye = FlowBuilder(Conv(1, 16, stride=2)).through(Conv(16, 32, stride=2)).also(Conv(32, 32)).label("eye")
    return (
        FlowBuilder(eye.build())
        .split([Conv(32, 32), nn.Conv2d(32, 32, 1)]).merge("add")
        .through(nn.Flatten())
        .through(nn.Linear(32 * 7 * 7, 64))
        .through(nn.GELU()).tag("features")
        .gate(SoftmaxRouter(64, 2), [nn.Linear(64, 10), nn.Linear(64, 10)]).tag("digit")
        .label("reader")
        .build()
    )  # fmt: skip


def draw(count: int, *, seed: int) -> tuple[Data, Data]:
    """Draw digits, and keep one in six of them for the test."""
    images, labels = digits(count, seed=seed)
    num_test = count // 6
    return (images[num_test:], labels[num_test:]), (images[:num_test], labels[:num_test])


def read_and_compare(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Give the loss of a batch, and the part of it that the model reads right."""
    answers = model(images)
    right = (answers.argmax(dim=1) == labels).float().mean()
    return cross_entropy(answers, labels), {"accuracy": right}


def trainer(model: Graph, *, num_steps: int, seed: int, **others: Any) -> Trainer:
    """Give what trains the model; the step runs with the same numbers on every tier that it uses."""
    return Trainer(
        model,
        read_and_compare,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=2e-3),
        schedule=CosineScheduler(2e-3, min=2e-5, total=num_steps),
        clip_norm=1.0,
        tier="captured",
        seed=seed,
        **others,
    )
