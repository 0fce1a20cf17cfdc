"""Running a program as the supervisor of ranks on a Ray cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from types import FrameType
from typing import Any

from flodl.core import DistributedError, environment

from .places import Placement
from .ray_agent import ProgramAgent
from .ray_cluster import connect, first_line


def run_on_ray(command: Sequence[str], placement: Placement, variables: Mapping[str, str]) -> int:
    """Run a program in an actor on this host, print what it prints, and return its exit code.

    SIGINT and SIGTERM are passed on, so that the program can save.
    """
    ray = connect(placement.address, relays_output=False)
    context = ray.get_runtime_context()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(context.get_node_id(), soft=False)
    told = replace(placement, address=context.gcs_address)
    variables = {**environment.child_variables(told.to_json()), **variables}
    actor_class = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"control": 1})(ProgramAgent)
    agent = actor_class.options(scheduling_strategy=here).remote([*command], variables, os.getcwd())
    with _passing_signals(agent):
        try:
            return _relay_output(ray, agent)
        except ray.exceptions.RayActorError as error:
            raise DistributedError(
                f"the actor of the supervisor is gone: {first_line(error)}. Run the same command again; a "
                "run that resumes continues from its last save."
            ) from None
        finally:
            with suppress(Exception):
                ray.kill(agent, no_restart=True)


def _relay_output(ray: Any, agent: Any) -> int:
    while True:
        found = agent.read.remote().future().result()
        if isinstance(found, int):
            return found if found >= 0 else 1
        name, data = found
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.buffer.write(data)
        stream.flush()


@contextmanager
def _passing_signals(agent: Any) -> Iterator[None]:
    arrived: SimpleQueue[int] = SimpleQueue()

    def send() -> None:
        while number := arrived.get():
            agent.signal.options(concurrency_group="control").remote(number)

    def note(number: int, _frame: FrameType | None) -> None:
        # A handler may interrupt a call of Ray, and must not call Ray itself.
        arrived.put(number)

    threading.Thread(target=send, name="flodl-signals", daemon=True).start()
    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        arrived.put(0)
        for number, handler in previous.items():
            signal.signal(number, handler)
