"""Where ranks run: on this machine, on a Ray cluster, or below torchrun."""

from .devices import local_devices
from .engine import Engine, make_supervisor, open_engine, serve_if_rank, supervise
from .places import ENGINES, Placement, check_device, launched_placement, parse_ranks

__all__ = [
    "ENGINES",
    "Engine",
    "Placement",
    "check_device",
    "launched_placement",
    "local_devices",
    "make_supervisor",
    "open_engine",
    "parse_ranks",
    "serve_if_rank",
    "supervise",
]
