"""LeNet-5 on MNIST: 99 % test accuracy after five epochs.

    FLODL_DATA=/path/to/data python lenet_mnist.py

If MNIST is not available, it trains on a smaller set of generated digits.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, Loader, Trainer
from flodl.core.errors import DataFileError
from flodl.data import Normalize, RandomCrop, digits, mnist
from flodl.optim import OneCycleLR

EPOCHS, BATCH = 5, 64
Pair = tuple[Tensor, Tensor]


def load() -> tuple[str, Pair, Pair]:
    try:
        return "MNIST", mnist(train=True), mnist(train=False)
    except DataFileError:
        return "generated digits (MNIST is not available)", digits(2000), digits(500, seed=1)


def lenet() -> Graph:
    return (
        FlowBuilder(nn.Conv2d(1, 6, 5, padding=2))
        .through(nn.ReLU())
        .through(nn.MaxPool2d(2))
        .through(nn.Conv2d(6, 16, 5))
        .through(nn.ReLU())
        .through(nn.MaxPool2d(2))
        .through(nn.Flatten())
        .tag("features")
        .through(nn.Linear(400, 120))
        .through(nn.ReLU())
        .through(nn.Linear(120, 84))
        .through(nn.ReLU())
        .through(nn.Linear(84, 10))
        .tag("digits")
        .label("lenet")
        .build()
    )


def classify(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), {"accuracy": (scores.argmax(1) == y).float().mean()}


def main() -> None:
    torch.manual_seed(0)
    name, train, test = load()
    steps = EPOCHS * -(-len(train[0]) // BATCH)
    normalize = Normalize([0.1307], [0.3081])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            lenet(),
            classify,
            optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.01),
            schedule=OneCycleLR(3e-3, steps),
            checkpoint_dir=Path(folder) / "run",
        )
        print(f"{name}: {len(train[0])} training digits, {len(test[0])} test digits, {trainer.device}")
        started = time.perf_counter()
        result = trainer.fit(
            Loader(train, BATCH, device=trainer.device, augment=[RandomCrop(2), normalize]),
            epochs=EPOCHS,
            eval_data=Loader(test, 500, device=trainer.device, shuffle=False, augment=normalize),
        )
        seconds = time.perf_counter() - started
    print(f"{result.metrics['eval_accuracy']:.2%} test accuracy, {seconds:.0f} s, {result.report.tier}")


if __name__ == "__main__":
    main()
