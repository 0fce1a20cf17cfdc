"""Rivals of torch itself: data-parallel training in several forms, and local SGD."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from task import flat_weights
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from .processes import TIMEOUT, Rank

# Of nine batches, a fast rank trains four and the slow one trains one.
SHARES = (4, 4, 1)


@contextmanager
def timed(rank: Rank) -> Iterator[None]:
    """From the moment when all ranks are ready to the last update of this one."""
    rank.meet("start")
    rank.started_s = time.monotonic()
    yield
    rank.ended_s = time.monotonic()


@contextmanager
def data_parallel(rank: Rank) -> Iterator[DistributedDataParallel]:
    store = dist.PrefixStore("ddp", rank.store)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.size, timeout=TIMEOUT)
    model = DistributedDataParallel(rank.model)
    # The first collectives open connections.
    dist.barrier()
    yield model
    dist.barrier()
    dist.destroy_process_group()


def blocks(rank: Rank, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Cut each epoch into blocks of the sum of these sizes, one part per rank.

    Yield the epoch, the positions of this rank's part, and the samples of all ranks so far.
    """
    total, before = sum(sizes), sum(sizes[: rank.rank])
    seen = 0
    for epoch in range(rank.job.num_epochs):
        for first in range(0, rank.job.samples_per_epoch - total + 1, total):
            seen += total
            yield epoch, first + before, first + before + sizes[rank.rank], seen


def equal(rank: Rank) -> tuple[int, ...]:
    return (rank.job.batch_size,) * rank.size


def solo(rank: Rank) -> None:
    """One rank trains everything."""
    with timed(rank):
        for epoch, start, stop, seen in blocks(rank, equal(rank)):
            update(rank, rank.model, epoch, start, stop)
            rank.recorder.take(seen, lambda: flat_weights(rank.model))


def ddp(rank: Rank) -> None:
    """Plain DistributedDataParallel."""
    with data_parallel(rank) as model, timed(rank):
        for epoch, start, stop, seen in blocks(rank, equal(rank)):
            update(rank, model, epoch, start, stop)
            rank.count_sync()
            if rank.rank == 0:
                rank.recorder.take(seen, lambda: flat_weights(model))


def split(rank: Rank) -> None:
    """Batches in proportion to the speeds at the start; the loss is weighted, so that the gradient is that of
    the whole batch."""
    whole = rank.job.batch_size * rank.size
    sizes = tuple(whole * share // sum(SHARES) for share in SHARES)
    weight = sizes[rank.rank] * rank.size / whole
    with data_parallel(rank) as model, timed(rank):
        for epoch, start, stop, seen in blocks(rank, sizes):
            update(rank, model, epoch, start, stop, weight=weight)
            rank.count_sync()
            if rank.rank == 0:
                rank.recorder.take(seen, lambda: flat_weights(model))


def join(rank: Rank) -> None:
    """Ranks have different numbers of batches; `Join` lets the others finish."""
    size = rank.job.batch_size
    sizes = tuple(share * size for share in SHARES)
    parts = list(blocks(rank, sizes))
    batches = [(epoch, first) for epoch, begin, end, _ in parts for first in range(begin, end, size)]
    # Gradients are divided by the number of ranks that still train.
    with (
        data_parallel(rank) as model,
        timed(rank),
        Join([model], divide_by_initial_world_size=False),
    ):
        for step, (epoch, start) in enumerate(batches, start=1):
            update(rank, model, epoch, start, start + size)
            rank.count_sync()
            if rank.rank == 0:
                # The slow rank has as many batches as there are parts.
                rank.recorder.take(size * (2 * step + min(step, len(parts))), lambda: flat_weights(model))


def post_local(rank: Rank) -> None:
    """Local SGD of torch: parameters are averaged once per period."""
    with data_parallel(rank) as model:
        own, _ = dist.new_subgroups(group_size=1)
        state = PostLocalSGDState(process_group=None, subgroup=own, start_localSGD_iter=0)
        model.register_comm_hook(state, post_localSGD_hook)
        period = rank.job.period
        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        rank.optimizer = PostLocalSGDOptimizer(rank.optimizer, averager)
        with timed(rank):
            for step, (epoch, start, stop, seen) in enumerate(blocks(rank, equal(rank))):
                update(rank, model, epoch, start, stop)
                # The averager averages before the step is counted.
                if step % period == 0:
                    rank.count_sync()
                    if rank.rank == 0:
                        rank.recorder.take(seen, lambda: flat_weights(model))


def update(rank: Rank, model: nn.Module, epoch: int, start: int, stop: int, *, weight: float = 1.0) -> None:
    loss = rank.loss_of(model, epoch, start, stop)
    rank.optimizer.zero_grad()
    (loss * weight if weight != 1.0 else loss).backward()
    rank.optimizer.step()
