"""The job of `fdl quickstart`, written as any user of flodl would write it: data, a model, a loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, SoftmaxRouter
from flodl.data import digits
from flodl.optim import CosineScheduler, apply, clip_grad_norm

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


def draw(count: int, *, seed: int, device: torch.device) -> tuple[Data, Data]:
    """Draw digits, and keep one in six of them for the test."""
    images, labels = (part.to(device) for part in digits(count, seed=seed))
    num_test = count // 6
    return (images[num_test:], labels[num_test:]), (images[:num_test], labels[:num_test])


def train(model: Graph, training: Data, test: Data, *, epochs: int, seed: int) -> Iterator[int]:
    """Train, and give the number of each epoch that is done; the model keeps the metrics."""
    images, labels = training
    order = torch.Generator().manual_seed(seed)
    batch_size = 128
    num_steps = epochs * -(-len(images) // batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = apply(CosineScheduler(2e-3, min=2e-5, total=num_steps), optimizer)
    for epoch in range(1, epochs + 1):
        model.train()
        shuffled = torch.randperm(len(images), generator=order).to(images.device)
        for batch in torch.split(shuffled, batch_size):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm(model, 1.0)
            optimizer.step()
            schedule.step()
            model.record("loss", loss, weight=len(batch))
            model.end_step()
        model.record("accuracy", accuracy(model, test))
        model.end_epoch()
        yield epoch


@torch.no_grad()
def accuracy(model: Graph, test: Data) -> Tensor:
    """Give the part of the digits that the model reads right."""
    model.eval()
    parts = zip(*(torch.split(part, 500) for part in test))
    right = [(model(images).argmax(dim=1) == labels).sum() for images, labels in parts]
    return torch.stack(right).sum() / len(test[1])
