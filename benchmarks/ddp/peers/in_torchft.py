"""torchft: local SGD with a lighthouse and a manager per replica (`pip install torchft-nightly`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from task import flat_weights

from .in_torch import blocks, equal, timed, update
from .processes import Rank


def local_sgd(rank: Rank) -> None:
    from torchft.local_sgd import LocalSGD

    logging.disable(logging.WARNING)
    # Each replica has its own store.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state_dict() -> dict[str, object]:
        return {"model": rank.model.state_dict(), "optimizer": rank.optimizer.state_dict()}

    def load_state_dict(state: dict[str, dict[str, object]]) -> None:
        rank.model.load_state_dict(state["model"])
        rank.optimizer.load_state_dict(state["optimizer"])

    manager = manager_of(rank, store, 2, load_state_dict, state_dict, timeout_s=30)
    try:
        with LocalSGD(manager, rank.model, rank.optimizer, sync_every=rank.job.period) as local:
            # The first quorum and its connections are not timed.
            rank.meet("quorum")
            local.sync()
            with timed(rank):
                _train(rank)
        rank.meet("trained")
    finally:
        manager.shutdown(wait=False)


def manager_of(
    rank: Any,
    store: dist.TCPStore,
    replicas: int,
    load_state_dict: Callable[..., None],
    state_dict: Callable[[], object],
    *,
    timeout_s: float,
) -> Any:
    """Return the manager of one replica, whose `store` is its own; the first sync needs all `replicas`."""
    from torchft import Manager, ProcessGroupGloo

    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=timeout_s)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=replicas,
        use_async_quorum=False,
        timeout=timedelta(seconds=timeout_s),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=rank.lighthouse,
        replica_id=str(rank.rank),
        hostname="127.0.0.1",
        init_sync=False,
    )


def _train(rank: Rank) -> None:
    for step, (epoch, start, stop, seen) in enumerate(blocks(rank, equal(rank)), start=1):
        update(rank, rank.model, epoch, start, stop)
        if step % rank.job.period == 0:
            rank.count_sync()
            if rank.rank == 0:
                rank.recorder.take(seen, lambda: flat_weights(rank.model))
