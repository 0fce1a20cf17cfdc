"""The recipes of the suite trained by hand: data-parallel training of torch in several forms, and torchft.

Each rank trains batches of the size of the recipe, as the ranks of flodl do, with the same initial weights,
augmentation and learning rate curve. Every rank has one range of the positions of an epoch.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from flodl import Loader

from .recipes import RECIPES, Recipe
from .task import Choice, loaders_of

PERIOD = 16
TIMEOUT = timedelta(seconds=300)


@dataclass
class Rank:
    """What one rank trains with."""

    choice: Choice
    recipe: Recipe
    rank: int
    store: dist.Store
    lighthouse: str
    device: torch.device
    train: Loader
    test: Loader
    model: nn.Module
    optimizer: Any
    # Steps of this rank, batches of the recipe's size over all ranks, and averages of all parameters.
    steps: int = 0
    syncs: int = 0

    @property
    def num_samples(self) -> int:
        limit = self.choice.limit
        total = self.train.num_samples or 0
        return min(total, limit * self.recipe.batch_size) if limit else total

    def meet(self, name: str) -> None:
        if self.store.add(name, 1) == self.choice.ranks:
            self.store.set(f"{name} all", "yes")
        self.store.wait([f"{name} all"], TIMEOUT)


def set_rate(rank: Rank, epoch: int, share: float) -> None:
    """Set the learning rate of this position of the curve, which has one step per batch of all ranks."""
    recipe, choice = rank.recipe, rank.choice
    if recipe.schedule is None:
        return
    per_epoch = -(-rank.num_samples // recipe.batch_size)
    lr = recipe.schedule(choice.epochs * per_epoch).lr(int((epoch + share) * per_epoch))
    for group in rank.optimizer.param_groups:
        group["lr"] = lr


def update(rank: Rank, model: nn.Module, batch: tuple[Any, ...], weight: float = 1.0) -> None:
    found = rank.recipe.loss_of(model, *batch)
    loss = found[0] if isinstance(found, tuple) else found
    rank.optimizer.zero_grad()
    (loss * weight if weight != 1.0 else loss).backward()
    rank.optimizer.step()
    rank.steps += 1


def batches(rank: Rank, epoch: int, start: int, stop: int, size: int) -> Iterator[tuple[Any, ...]]:
    for item in rank.train.between(start, stop, epoch=epoch, batch_size=size):
        set_rate(rank, epoch, (item.position - start) / max(1, stop - start))
        found = item.batch
        yield tuple(found) if isinstance(found, tuple | list) else (found,)


def part(rank: Rank, *, sizes: bool) -> tuple[int, int, int]:
    """Return the range of this rank, and its batch size.

    With `sizes`, all ranks take the same number of steps, with batches by their shares. Otherwise they have
    the same batch size, and numbers of batches by their shares.
    """
    shares, size, num = rank.choice.shares, rank.recipe.batch_size, rank.num_samples
    total = sum(shares)
    if not sizes:
        parts = [num * share // total for share in shares]
        start = sum(parts[: rank.rank])
        return start, start + parts[rank.rank], size
    own = [max(1, round(size * len(shares) * share / total)) for share in shares]
    steps = num // sum(own)
    start = steps * sum(own[: rank.rank])
    return start, start + steps * own[rank.rank], own[rank.rank]


@contextmanager
def data_parallel(rank: Rank) -> Iterator[DistributedDataParallel]:
    backend = "nccl" if _own_gpus(rank.choice) else "gloo"
    store = dist.PrefixStore("ddp", rank.store)
    dist.init_process_group(
        backend, store=store, rank=rank.rank, world_size=rank.choice.ranks, timeout=TIMEOUT
    )
    yield DistributedDataParallel(rank.model)
    dist.destroy_process_group()


def ddp(rank: Rank, train: Callable[[Callable[[int], None]], None]) -> None:
    """Plain DistributedDataParallel; by shares of the batch, if ranks have different ones."""
    start, stop, size = part(rank, sizes=True)
    weight = size / rank.recipe.batch_size

    with data_parallel(rank) as model:

        def epoch_of(epoch: int) -> None:
            for batch in batches(rank, epoch, start, stop, size):
                update(rank, model, batch, weight)
                rank.syncs += 1

        train(epoch_of)


def ddp_join(rank: Rank, train: Callable[[Callable[[int], None]], None]) -> None:
    start, stop, size = part(rank, sizes=False)

    with data_parallel(rank) as model:

        def epoch_of(epoch: int) -> None:
            with Join([model]):
                for batch in batches(rank, epoch, start, stop, size):
                    update(rank, model, batch)
                    rank.syncs += 1

        train(epoch_of)


def post_local_sgd(rank: Rank, train: Callable[[Callable[[int], None]], None]) -> None:
    start, stop, size = part(rank, sizes=True)

    with data_parallel(rank) as model:
        # No gradients are averaged: the subgroup of a rank is the rank itself.
        subgroup, _ = dist.new_subgroups(group_size=1)
        state = PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=0)
        model.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=PERIOD, warmup_steps=0)
        rank.optimizer = PostLocalSGDOptimizer(rank.optimizer, averager)

        def epoch_of(epoch: int) -> None:
            for batch in batches(rank, epoch, start, stop, size):
                rank.syncs += rank.steps % PERIOD == 0
                update(rank, model, batch)

        train(epoch_of)


def torchft(rank: Rank, train: Callable[[Callable[[int], None]], None]) -> None:
    from peers.in_torchft import manager_of
    from torchft.local_sgd import LocalSGD

    logging.disable(logging.WARNING)
    start, stop, size = part(rank, sizes=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    state = {"num": torch.zeros(1)}
    manager = manager_of(rank, store, rank.choice.ranks, lambda saved: None, lambda: state, timeout_s=60)

    def epoch_of(epoch: int) -> None:
        for batch in batches(rank, epoch, start, stop, size):
            update(rank, rank.model, batch)
            rank.syncs += rank.steps % PERIOD == 0

    try:
        with LocalSGD(manager, rank.model, rank.optimizer, sync_every=PERIOD):
            train(epoch_of)
    finally:
        manager.shutdown(wait=False)


RIVALS: dict[str, Callable[..., None]] = {
    "ddp": ddp,
    "ddp-split": ddp,
    "ddp-join": ddp_join,
    "post-local-sgd": post_local_sgd,
    "torchft": torchft,
}


def missing(policy: str) -> str:
    """Return why a rival cannot run here; an empty text if it can."""
    if policy == "torchft" and find_spec("torchft") is None:
        return "torchft is not installed (pip install torchft-nightly)"
    return ""


def run(choice: Choice) -> dict[str, Any]:
    """Train with a rival, and return the quality, the seconds of training and the syncs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, _lighthouse(choice) as lighthouse:
        processes = [
            context.Process(target=_main, args=(choice, rank, store.port, lighthouse, folder), daemon=True)
            for rank in range(choice.ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode != 0:
                for other in processes:
                    other.kill()
                raise RuntimeError(f"a rank of {choice.policy} ended with code {process.exitcode}")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return found


@contextmanager
def _lighthouse(choice: Choice) -> Iterator[str]:
    if choice.policy != "torchft":
        yield ""
        return
    os.environ.setdefault("RUST_LOG", "off")
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=choice.ranks, join_timeout_ms=1000)
    try:
        yield server.address()
    finally:
        server.shutdown()


def _own_gpus(choice: Choice) -> bool:
    return choice.device.startswith("cuda") and torch.cuda.device_count() >= choice.ranks


def _main(choice: Choice, number: int, port: int, lighthouse: str, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # The log of torchft.
    os.environ.setdefault("RUST_LOG", "off")
    device = torch.device(choice.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    elif device.index is None:
        device = torch.device("cuda", number if _own_gpus(choice) else 0)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    recipe = RECIPES[choice.model]
    torch.manual_seed(choice.seed)
    model = recipe.make_model().to(device)
    # Dropout differs from rank to rank.
    torch.manual_seed(choice.seed + 1000 * (number + 1))
    optimizer = recipe.optimizer([{"params": list(model.parameters())}])
    train, test = loaders_of(recipe, choice, str(device))
    rank = Rank(choice, recipe, number, store, lighthouse, device, train, test, model, optimizer)
    curve: list[float] = []
    took_s = 0.0

    def train_all(epoch_of: Callable[[int], None]) -> None:
        nonlocal took_s
        for epoch in range(choice.epochs):
            model.train()
            rank.meet(f"begin {epoch}")
            began_s = time.perf_counter()
            epoch_of(epoch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            rank.meet(f"end {epoch}")
            took_s += time.perf_counter() - began_s
            if number == 0:
                curve.append(evaluate(rank))
            rank.meet(f"evaluated {epoch}")

    RIVALS[choice.policy](rank, train_all)
    if number == 0:
        num = sum(parameter.numel() for parameter in model.parameters())
        ring = 2 * 4 * num * (choice.ranks - 1) * rank.syncs
        facts = {"seconds": took_s, "curve": curve, "quality": curve[-1], "syncs": rank.syncs}
        (Path(folder) / "found.json").write_text(json.dumps({**facts, "num_bytes": ring}))
    rank.meet("done")


def evaluate(rank: Rank) -> float:
    """Return the metric of the recipe over all test samples."""
    rank.model.eval()
    total, num = 0.0, 0
    with torch.no_grad():
        for batch in rank.test:
            parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
            found = rank.recipe.loss_of(rank.model, *parts)
            loss, metrics = found if isinstance(found, tuple) else (found, {})
            value = metrics.get(rank.recipe.metric, loss)
            total, num = total + float(value) * len(parts[0]), num + len(parts[0])
    return total / num
