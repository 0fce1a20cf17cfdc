"""The connection to a Ray cluster."""

from __future__ import annotations

import logging
import socket
from importlib import import_module
from typing import Any

from flodl.core import DistributedError


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        return import_module("ray")
    except ImportError as error:
        if error.name != "ray":
            raise
        raise DistributedError(
            "ranks on a Ray cluster need Ray, which is not installed. Install it with: "
            "pip install 'flodl[ray]'"
        ) from None


def connect(address: str, *, relays_output: bool) -> Any:
    """Connect to a running cluster, and return the module `ray`.

    Without an address, Ray looks for a cluster that was started on this host. It never starts one.
    """
    ray = import_ray()
    if address.startswith("ray://"):
        raise DistributedError(
            f"the address {address!r} is that of a Ray client. Run on a host of the cluster, with the "
            "address HOST:PORT that `ray start` printed."
        )
    if ray.is_initialized():
        return ray
    if address:
        _check_reachable(address)
    try:
        ray.init(
            address=address or "auto", logging_level=logging.ERROR, log_to_driver=relays_output,
            namespace="flodl",
        )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at {address}" if address else "on this host"
        raise DistributedError(
            f"there is no Ray cluster {where}: {str(error).splitlines()[0]} Start one with "
            "`ray start --head`, or pass the address of another host."
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise DistributedError(f"the address {address!r} is not HOST:PORT, such as 10.0.0.1:6379.")
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except OSError as error:
        raise DistributedError(
            f"there is no Ray cluster at {address}: {error.strerror or error}. Start one with "
            "`ray start --head`, or pass the address of another host."
        ) from None


def device_kind(ray: Any) -> str:
    """Return the device of ranks that name none: CUDA if the cluster has GPUs."""
    return "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"


def resources(ray: Any) -> dict[str, float]:
    """Return how many CPUs and GPUs the cluster has, over how many nodes."""
    found = ray.cluster_resources()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {"nodes": len(nodes), "cpus": found.get("CPU", 0), "gpus": found.get("GPU", 0)}


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
