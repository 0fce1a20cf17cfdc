"""The program of `fdl quickstart`, written like any user program: data, a model, a trainer."""

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
    """A 3×3 convolution with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        layer = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        super().__init__(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def build_model() -> Graph:
    """Build a digit classifier: a convolutional encoder, two parallel branches, two gated experts."""
    encoder = (
        FlowBuilder(Conv(1, 16, stride=2)).through(Conv(16, 32, stride=2)).also(Conv(32, 32)).label("encoder")
    )
    return (
        FlowBuilder(encoder.build())
        .split([Conv(32, 32), nn.Conv2d(32, 32, 1)]).merge("add")
        .through(nn.Flatten())
        .through(nn.Linear(32 * 7 * 7, 64))
        .through(nn.GELU()).tag("features")
        .gate(SoftmaxRouter(64, 2), [nn.Linear(64, 10), nn.Linear(64, 10)]).tag("digit")
        .label("digits")
        .build()
    )  # fmt: skip


def make_data(count: int, *, seed: int) -> tuple[Data, Data]:
    """Draw digits, and hold out one sixth of them for the test."""
    images, labels = digits(count, seed=seed)
    num_test = count // 6
    return (images[num_test:], labels[num_test:]), (images[:num_test], labels[:num_test])


def loss_and_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch and its accuracy."""
    logits = model(images)
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return cross_entropy(logits, labels), {"accuracy": accuracy}


def make_trainer(model: Graph, *, num_steps: int, seed: int, **options: Any) -> Trainer:
    """Return a trainer; the captured tier computes the same numbers as the eager one."""
    return Trainer(
        model,
        loss_and_accuracy,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=2e-3),
        schedule=CosineScheduler(2e-3, min=2e-5, total=num_steps),
        clip_norm=1.0,
        tier="captured",
        seed=seed,
        **options,
    )
