"""What places ranks, and a supervisor on top of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from flodl.core import log
from flodl.core.environment import note_launch_used, torchrun_variables
from flodl.distributed.coordination import CoordinatorSettings
from flodl.distributed.ranks import WorkerFactory
from flodl.distributed.supervisor import Launcher, LocalLauncher, Outcome, RankSpec, Supervisor

from .devices import local_devices
from .places import Placement, launched_placement

LOOPBACK = "127.0.0.1"


class Engine(Protocol):
    """Gives places to ranks: on this machine, or on many."""

    launcher: Launcher
    # The address of this host for ranks.
    host: str
    # Ranks that are started at once; further ones are offered once the engine has a place for them.
    ranks: list[RankSpec]
    start_ranks: int
    may_wait: bool
    # Whether ranks see the files of this process.
    shares_files: bool

    def attend(self, supervisor: Supervisor) -> None:
        """Begin to offer places to a supervisor, with `add_rank`."""

    def close(self) -> None: ...


class LocalEngine:
    """One process per rank on this machine; nothing listens beyond loopback."""

    may_wait = False
    shares_files = True
    host = LOOPBACK

    def __init__(self, placement: Placement) -> None:
        self.launcher: Launcher = LocalLauncher()
        self.start_ranks = placement.start_ranks
        devices = placement.devices or local_devices(placement.max_ranks)
        self.ranks = [RankSpec(device) for device in devices]

    def attend(self, supervisor: Supervisor) -> None:
        """All places are there from the start."""

    def close(self) -> None:
        """Ranks end with their run."""


def serve_if_rank() -> None:
    """Serve as a rank if torchrun started this process for that; it ends then.

    The program continues in the process of the supervisor.
    """
    if torchrun_variables() is not None:
        from . import torchrun_rank

        torchrun_rank.serve_if_rank()


@contextmanager
def open_engine(placement: Placement | None = None) -> Iterator[Engine]:
    """Open the engine of a placement; by default, the one that `fdl launch` or torchrun asks for."""
    if placement is None:
        serve_if_rank()
    note_launch_used()
    placement = placement or launched_placement() or Placement()
    engine: Engine
    if placement.on == "ray":
        from .ray_engine import RayEngine

        engine = RayEngine(placement)
    elif placement.on == "torchrun":
        from .torchrun_engine import TorchrunEngine

        engine = TorchrunEngine(placement)
    else:
        engine = LocalEngine(placement)
    try:
        yield engine
    finally:
        engine.close()


def make_supervisor(
    engine: Engine,
    worker_factory: WorkerFactory,
    *,
    settings: CoordinatorSettings | None = None,
    **options: Any,
) -> Supervisor:
    """Return a supervisor whose ranks run where the engine places them; see `Supervisor` for the options."""
    settings = replace(settings or CoordinatorSettings(), start_ranks=engine.start_ranks)
    supervisor = Supervisor(
        worker_factory,
        ranks=engine.ranks,
        settings=settings,
        launcher=engine.launcher,
        host=engine.host,
        may_wait=engine.may_wait,
        **options,
    )
    engine.attend(supervisor)
    return supervisor


def supervise(
    worker_factory: WorkerFactory, *, placement: Placement | None = None, **options: Any
) -> Outcome:
    """Train on ranks wherever `fdl launch`, torchrun or `placement` puts them; by default, one rank here."""
    with open_engine(placement) as engine:
        log.verbose("process %d supervises ranks; %s", os.getpid(), type(engine).__name__)
        return make_supervisor(engine, worker_factory, **options).run()
