"""torchft after SIGKILL of one of three replicas during an average of its parameters."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NUM_REPLICAS, VICTIM = 3, 2
SYNC_EVERY, STEP_S = 10, 0.02
# The sync in which a replica is killed, how long after its start, and how many follow.
KILL_IN, KILL_AFTER_S, NUM_SYNCS = 3, 0.05, 6
# Shorter than its defaults (a heartbeat of 5 s), so that a loss is noticed earlier.
JOIN_TIMEOUT_MS, HEARTBEAT_TIMEOUT_MS = 200, 500


def run_torchft(num_parameters: int) -> dict[str, Any]:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=2,
        join_timeout_ms=JOIN_TIMEOUT_MS,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])
    told: Any = context.Queue()
    processes = [
        context.Process(target=_replica, args=(rank, num_parameters, lighthouse.address(), told), daemon=True)
        for rank in range(NUM_REPLICAS)
    ]
    for process in processes:
        process.start()
    killed_s, commits, failed = 0.0, [], 0
    starts = 0
    try:
        while len(commits) < 2:
            kind, rank, number, when_s = told.get(timeout=120)
            if kind == "sync" and number == KILL_IN:
                starts += 1
                if starts == NUM_REPLICAS:
                    time.sleep(max(0.0, when_s + KILL_AFTER_S - time.monotonic()))
                    killed_s = time.monotonic()
                    os.kill(processes[VICTIM].pid or 0, signal.SIGKILL)
            elif killed_s and rank != VICTIM and when_s > killed_s:
                if kind == "committed":
                    commits.append(when_s)
                elif kind == "discarded":
                    failed = max(failed, 1)
    finally:
        for process in processes:
            process.kill()
            process.join()
        lighthouse.shutdown()
    return {"recovery_s": max(commits) - killed_s, "survivors_lost": failed}


def _replica(rank: int, num_parameters: int, lighthouse: str, told: Any) -> None:
    from torchft import Manager, ProcessGroupGloo

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    weights = torch.zeros(num_parameters)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=lambda state: None,
        state_dict=lambda: {"num": torch.zeros(1)},
        min_replica_size=2,
        use_async_quorum=False,
        timeout=timedelta(seconds=20),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=str(rank),
        hostname="127.0.0.1",
        init_sync=False,
    )
    for number in range(NUM_SYNCS):
        time.sleep(SYNC_EVERY * STEP_S)
        # What LocalSGD.sync does, with the times of its parts.
        manager.start_quorum()
        told.put(("sync", rank, number, time.monotonic()))
        average = weights.clone()
        manager.allreduce(average).wait()
        is_committed = manager.should_commit()
        if is_committed:
            weights.copy_(average)
        told.put(("committed" if is_committed else "discarded", rank, number, time.monotonic()))
    time.sleep(60)
