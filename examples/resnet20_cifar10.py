"""ResNet-20 on CIFAR-10 with its published recipe: 91.25 % after 64,000 updates.

    FLODL_DATA=/path/to/data python resnet20_cifar10.py --run-dir runs/resnet20 [--bf16]

SGD with momentum 0.9 and weight decay 1e-4, batches of 128, a learning rate of 0.1 that is divided by 10
after 32,000 and 48,000 updates; images are padded by 4, cropped at random and flipped. It can be stopped
and resumed at any time. Without the data, or without arguments on a CPU, it trains for a few steps on
random images.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, Loader, Trainer
from flodl.cli import Args, option
from flodl.core.errors import DataFileError
from flodl.data import Normalize, RandomCrop, RandomFlip, cifar10
from flodl.optim import MultiStepLR
from flodl.train import FitResult

BATCH, UPDATES, DROPS = 128, 64_000, [32_000, 48_000]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """Train ResNet-20 on CIFAR-10."""

    run_dir: Path | None = option(None, help="Folder of the run.")  # noqa: RUF009
    updates: int = option(UPDATES, help="Number of updates; the rate drops after 1/2 and 3/4 of them.")
    bf16: bool = option(False, help="Compute in bfloat16.")
    channels_last: bool = option(
        False, help="Use the channels_last memory format, which is faster on tensor cores."
    )
    tier: str = option("auto", help="auto, eager, captured or compiled.")
    random_images: bool = option(False, help="Train on a few random images, as a smoke test.")


def block(in_channels: int, out_channels: int, stride: int = 1) -> Graph:
    """Return two convolutions with a shortcut without parameters, as in the paper's CIFAR models."""
    main = (
        FlowBuilder(nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False))
        .through(nn.BatchNorm2d(out_channels))
        .through(nn.ReLU())
        .through(nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False))
        .through(nn.BatchNorm2d(out_channels))
        .build()
    )
    shortcut = nn.Identity() if in_channels == out_channels else Shortcut(out_channels - in_channels, stride)
    return FlowBuilder().also_with(shortcut, main).through(nn.ReLU()).build()


class Shortcut(nn.Module):
    """Subsample the pixels, and pad new channels with zeros."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        half = self.new_channels // 2
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))


def resnet20() -> Graph:
    flow = FlowBuilder(nn.Conv2d(3, 16, 3, 1, 1, bias=False)).through(nn.BatchNorm2d(16)).through(nn.ReLU())
    for name, in_channels, out_channels in (("wide", 16, 16), ("middle", 16, 32), ("narrow", 32, 64)):
        for number in range(3):
            first = number == 0
            stride = 2 if first and in_channels != out_channels else 1
            flow = flow.through(block(in_channels if first else out_channels, out_channels, stride)).tag(
                f"{name}_{number}"
            )
    flow = flow.through(nn.AdaptiveAvgPool2d(1)).through(nn.Flatten()).through(nn.Linear(64, 10))
    model = flow.tag("classes").label("resnet20").build()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model


def classify(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), {"accuracy": (scores.argmax(1) == y).float().mean()}


def load(settings: Settings) -> tuple[str, Pair, Pair, int]:
    """Return the name of the data, training and test images, and the number of updates."""
    on_gpu = torch.cuda.is_available()
    if not settings.random_images and (on_gpu or settings.run_dir is not None):
        try:
            train, test = (cifar10(train=part, dtype=torch.uint8) for part in (True, False))
            return "CIFAR-10", train, test, settings.updates
        except DataFileError as error:
            print(f"no CIFAR-10: {error}")
    images = torch.randint(256, (2 * BATCH, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (2 * BATCH,))
    return "random images", (images, labels), (images[:BATCH], labels[:BATCH]), 2


def make_trainer(settings: Settings, updates: int, run_dir: Path, hooks: Sequence[object] = ()) -> Trainer:
    model = resnet20()
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    drops = [max(1, drop * updates // UPDATES) for drop in DROPS]
    return Trainer(
        model,
        classify,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=MultiStepLR(0.1, drops, 0.1),
        precision="bf16" if settings.bf16 else "fp32",
        tier=settings.tier,  # type: ignore[arg-type]
        checkpoint_dir=run_dir,
        save_every=10,
        hooks=hooks,
    )


def fit(trainer: Trainer, train: Pair, test: Pair, updates: int) -> FitResult:
    normalize = Normalize([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    augment = [RandomCrop(4), RandomFlip(), normalize]
    return trainer.fit(
        Loader(train, BATCH, device=trainer.device, drop_last=True, augment=augment),
        epochs=round(updates / (len(train[0]) // BATCH)),
        eval_data=Loader(test, 1000, device=trainer.device, shuffle=False, augment=normalize),
    )


def main() -> None:
    settings = Args(Settings, name="resnet20_cifar10.py").parse()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    name, train, test, updates = load(settings)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(settings, updates, settings.run_dir or Path(folder) / "run")
        size = f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters"
        print(f"{name}: {len(train[0])} images, {updates} updates, {size}, {trainer.device}")
        started = time.perf_counter()
        result = fit(trainer, train, test, updates)
        seconds = time.perf_counter() - started
        best = result.best("eval_accuracy", mode="max")
    print(
        f"test accuracy {result.metrics['eval_accuracy']:.2%} after {result.steps} updates, {seconds:.0f} s"
    )
    print(f"best of {len(result.history)} epochs: {best['eval_accuracy']:.2%}; {result.report.tier} step")


if __name__ == "__main__":
    main()
