"""What `fdl launch` starts, as data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from socket import getaddrinfo

from flodl.core import DistributedError

from .places import Placement, parse_ranks

_RANK_MODULE = "flodl.distributed.placement.torchrun_rank"
_MAX_RESTARTS = 3
# If hosts share the store of the rendezvous, those that come later wait for it in vain (torch 2.13).
_TORCHRUN_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, where its ranks run, and in words what it starts. `in_actor` means in an actor of Ray."""

    placement: Placement
    command: list[str]
    starts: list[str]
    in_actor: bool = False
    variables: dict[str, str] = field(default_factory=dict)


def plan_launch(
    placement: Placement, script: Sequence[str], *, hosts: str | None = None, restarts: int | None = None
) -> Launch:
    """Return what to start for a script with its arguments.

    >>> launch = plan_launch(Placement(devices=("cuda:0", "cpu")), ["train.py", "--lr", "0.1"])
    >>> print(*launch.command[1:])
    train.py --lr 0.1
    >>> print("\\n".join(launch.starts))
    supervisor: this host, runs train.py
    rank 0: this host, cuda:0
    rank 1: this host, cpu
    """
    if placement.on != "torchrun" and (hosts is not None or restarts is not None):
        name = "--hosts" if hosts is not None else "--restarts"
        raise DistributedError(f"{name} is for torchrun, and ranks run with {placement.on}. Leave it out.")
    if placement.on == "local":
        return _local(placement, script)
    if placement.on == "ray":
        return _ray(placement, script)
    return _torchrun(placement, script, hosts, _MAX_RESTARTS if restarts is None else restarts)


def _local(placement: Placement, script: Sequence[str]) -> Launch:
    if placement.address:
        raise DistributedError(
            f"--address {placement.address} is for --on ray and --on torchrun, and ranks run on this host."
        )
    if placement.ranks[0] != placement.ranks[1]:
        raise DistributedError("a range of ranks is for --on ray. On this host, pass one number.")
    devices = (
        placement.devices or ("a CUDA device of its own if there are any, else cpu",) * placement.max_ranks
    )
    ranks = [f"rank {rank}: this host, {device}" for rank, device in enumerate(devices)]
    starts = [f"supervisor: this host, runs {script[0]}", *ranks]
    return Launch(placement, [sys.executable, *script], starts)


def _ray(placement: Placement, script: Sequence[str]) -> Launch:
    if find_spec("ray") is None:
        from .ray_cluster import import_ray

        import_ray()
    where = f"the Ray cluster at {placement.address}" if placement.address else "the Ray cluster of this host"
    needs = {"cpu": "1 CPU", "cuda": "1 CPU and 1 GPU"}
    unknown = "1 CPU, and 1 GPU if the cluster has GPUs"
    starts = [f"supervisor: an actor on this host, runs {script[0]}"]
    for rank, device in enumerate(placement.devices or ("",) * placement.max_ranks):
        when = "" if rank < placement.start_ranks else ", once there is a place for it"
        starts.append(f"rank {rank}: an actor in {where}, needs {needs.get(device, unknown)}{when}")
    return Launch(placement, [sys.executable, *script], starts, in_actor=True)


def _torchrun(placement: Placement, script: Sequence[str], hosts: str | None, restarts: int) -> Launch:
    least, most = parse_ranks(hosts or "1")
    if placement.ranks[0] != placement.ranks[1]:
        raise DistributedError(
            "with torchrun, the number of ranks per host is fixed, and hosts come and go. Pass --ranks 2 "
            "--hosts 1:4, for example."
        )
    if most > 1 and not placement.address:
        raise DistributedError(
            "several hosts need an address at which they meet: --address HOST:PORT, with the first host and "
            "a free port of it, the same on each host."
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{least}:{most}"]
    command += ["--nproc-per-node", str(placement.max_ranks), "--max-restarts", str(restarts)]
    if placement.address:
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", placement.address, "--rdzv-id", "flodl"]
        own, is_first = _own_address(placement.address)
        # torchrun compares names, and may not notice that an address is its own.
        command += ["--rdzv-conf", f"is_host={is_first}", "--local-addr", own]
    else:
        command += ["--standalone"]
    command += ["-m", _RANK_MODULE, *script]
    where = f"{least} to {most} hosts" if most > least else f"{most} host{'s' if most > 1 else ''}"
    each = ", ".join(placement.devices) or "a CUDA device each if there are any, else cpu"
    starts = [
        f"supervisor: a process on the host of rank 0, runs {script[0]}",
        f"ranks: {placement.max_ranks} on each of {where} ({each})",
        f"after a loss: torchrun restarts all ranks, up to {restarts} times, and the run resumes",
    ]
    return Launch(replace(placement, address=""), command, starts, variables=_TORCHRUN_VARIABLES)


def _own_address(address: str) -> tuple[str, bool]:
    """Return the address of this host on the way to the rendezvous, and whether that is on this host."""
    from .torchrun_rank import address_towards

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise DistributedError(
            f"the address {address!r} has no port. Write HOST:PORT, such as 10.0.0.1:29400."
        )
    try:
        own = address_towards(host, int(port))
        return own, own in {each[4][0] for each in getaddrinfo(host, int(port))}
    except OSError as error:
        raise DistributedError(f"the host {host!r} of --address cannot be found: {error.strerror}.") from None
