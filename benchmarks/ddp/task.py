"""What all rivals train: the same model, initial weights, samples in the same order, and evaluation."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from throttle import Scenario, Throttle
from torch import Tensor, nn

from flodl.data.datasets import mnist

LossOf = Callable[[nn.Module, Tensor, Tensor], Tensor]

NUM_RANKS = 3
NUM_SNAPSHOTS = 50


@dataclass(frozen=True)
class Job:
    """One run of one rival."""

    rival: str
    scenario: Scenario
    seed: int
    folder: str
    lr: float = 0.05
    momentum: float = 0.9
    batch_size: int = 48
    num_batches: int = 900
    num_epochs: int = 1
    hidden: int = 64
    # Steps between two synchronizations of rivals that have such a setting.
    period: int = 16
    # Batches of the slowest rank in the first window of flodl.
    anchor: int = 4

    @property
    def samples_per_epoch(self) -> int:
        return self.num_batches // self.num_epochs * self.batch_size

    @property
    def num_samples(self) -> int:
        return self.samples_per_epoch * self.num_epochs

    @property
    def data(self) -> Path:
        return Path(self.folder).parent / "mnist.pt"


def prepare_data(folder: Path) -> None:
    """Write MNIST so that all processes map the same memory."""
    where = os.environ.get("FLODL_DATA") or str(Path(__file__).resolve().parents[3] / "shared" / "data")
    parts: list[Tensor] = []
    for train in (True, False):
        images, labels = mnist(Path(where) / "mnist", train=train)
        parts += [(images.flatten(1) * 255).round().to(torch.uint8), labels]
    torch.save(parts, folder / "mnist.pt")


class Data:
    """Batches by position. Position p of an epoch is the sample `order[p]`, for every rival."""

    def __init__(self, job: Job) -> None:
        self._x, self._y, self._test_x, self._test_y = torch.load(job.data, mmap=True)
        self._job = job
        self._orders: dict[int, Tensor] = {}

    def order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            seeded = torch.Generator().manual_seed(1000 * self._job.seed + epoch)
            found = torch.randperm(len(self._x), generator=seeded)
            self._orders[epoch] = found[: self._job.samples_per_epoch]
        return self._orders[epoch]

    def batch(self, epoch: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        chosen = self.order(epoch)[start:stop]
        return _scaled(self._x[chosen]), self._y[chosen]

    def test(self) -> tuple[Tensor, Tensor]:
        return _scaled(self._test_x), self._test_y


def _scaled(pixels: Tensor) -> Tensor:
    return pixels.float().sub_(33.3).div_(78.6)


def make_model(job: Job) -> nn.Sequential:
    """Return the model with the initial weights of this seed."""
    torch.manual_seed(job.seed)
    return nn.Sequential(nn.Linear(784, job.hidden), nn.ReLU(), nn.Linear(job.hidden, 10))


def make_optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=job.lr, momentum=job.momentum)


def plain_step(job: Job, loss_of: LossOf) -> Callable[[Tensor, Tensor], object]:
    """Return the step that rivals write by hand, on a model of its own."""
    model = make_model(job)
    optimizer = make_optimizer(job, model)

    def step(x: Tensor, y: Tensor) -> None:
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def make_throttle(
    job: Job,
    rank: int,
    data: Data,
    make_step: Callable[[Job, LossOf], Callable[[Tensor, Tensor], object]] = plain_step,
) -> Throttle:
    """Return a throttle that knows how long the backward pass and the update of a rival take."""
    throttle, taken = Throttle(job.scenario, rank, job.batch_size), []
    forward_s = 0.0

    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal forward_s
        loss = nn.functional.cross_entropy(model(x), y)
        # Code that ran some time ago is slower, as it is in training.
        time.sleep(0.005)
        forward_s = time.monotonic()
        return loss

    step, (x, y) = make_step(job, loss_of), data.batch(0, 0, job.batch_size)
    for _ in range(30):
        step(x, y)
        taken.append(time.monotonic() - forward_s)
    throttle.rest_s = statistics.median(taken[10:])
    return throttle


class Recorder:
    """Keeps weights at every so many samples, or versions; they are evaluated after the run."""

    def __init__(self, *, every: int) -> None:
        self._every, self._due = every, 0
        self._found: list[tuple[float, int, Tensor]] = []

    def take(self, progress: int, flat: Callable[[], Tensor]) -> None:
        """Keep weights after this many samples, or as this version, if the last ones are old enough."""
        if progress >= self._due:
            self._due = progress + self._every
            self._found.append((time.monotonic(), progress, flat()))

    def write(self, path: Path) -> None:
        torch.save(self._found, path)


def flat_weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def write_rank(job: Job, rank: int, spans: list[tuple[float, float]], **facts: Any) -> None:
    """Leave what a rank measured for the process that started it."""
    path = Path(job.folder) / f"rank{rank}.json"
    path.write_text(json.dumps({"spans": spans, **facts}))


def evaluate(job: Job, snapshots: list[tuple[float, int, Tensor]]) -> list[tuple[float, int, float]]:
    """Return time, samples and accuracy on all test samples for each of the recorded weights."""
    model, (x, y) = make_model(job), Data(job).test()
    found = []
    with torch.no_grad():
        for when_s, num_samples, flat in snapshots:
            nn.utils.vector_to_parameters(flat, model.parameters())
            correct = (model(x).argmax(1) == y).float().mean().item()
            found.append((when_s, num_samples, correct))
    return found
