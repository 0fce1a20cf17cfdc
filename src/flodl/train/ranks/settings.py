"""The devices of a trainer, and how they train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from flodl.core import TrainError, log
from flodl.core.device import parse_device
from flodl.core.environment import note_launch_used, torchrun_variables
from flodl.core.integers import as_integer
from flodl.core.paths import suggestion
from flodl.core.plain import describe
from flodl.distributed.placement import Placement, launched_placement, serve_if_rank
from flodl.distributed.reduction import Mean, Nesterov, OuterOptimizer, SlowMomentum

Policy = Literal["sync", "cadence", "async"]
Backend = Literal["auto", "nccl", "cpu"]
Wire = Literal["fp32", "bf16"]

_OUTER: dict[str, type[OuterOptimizer]] = {
    "mean": Mean,
    "slow_momentum": SlowMomentum,
    "nesterov": Nesterov,
}
_ADVICE = "Write devices=['cuda:0', 'cuda:1'], or a number of devices: devices=2."


@dataclass(frozen=True)
class RankSettings:
    """Several devices, one rank each, and how they meet."""

    devices: tuple[torch.device, ...]
    policy: Policy
    backend: Backend
    wire: Wire
    outer: OuterOptimizer
    # Where ranks run.
    placement: Placement

    @property
    def is_local(self) -> bool:
        return self.placement.on == "local"

    def recorded(self) -> dict[str, Any]:
        """Return what the settings of a trainer record, and a resumed run is compared by."""
        return {
            "devices": tuple(map(str, self.devices)),
            "policy": self.policy,
            "backend": self.backend,
            "wire": self.wire,
            "outer": describe(self.outer),
        }

    def describe(self) -> str:
        return f"{len(self.devices)} devices" if self.is_local else f"ranks ({self.placement.describe()})"

    @property
    def reducer_backend(self) -> str:
        """The name of the backend for a `Reducer`: `cpu` copies CUDA tensors to the host."""
        if self.backend != "cpu":
            return self.backend
        if not self.is_local:
            return "host"
        on_cpu = all(device.type == "cpu" for device in self.devices)
        return "gloo" if on_cpu else "host"


def rank_settings(
    devices: Any, *, device: Any, policy: Any, backend: Any, outer: Any, wire: Any
) -> RankSettings | None:
    """Return the settings of a trainer with `devices=`; None without."""
    for name, value, choices in (
        ("policy", policy, get_args(Policy)),
        ("backend", backend, get_args(Backend)),
        ("wire", wire, get_args(Wire)),
    ):
        if value not in choices:
            raise TrainError(f"{name}={value!r}. {suggestion(str(value), choices, known_as='values')}")
    found = _outer(outer)
    placement = _launched(devices, device)
    if placement is not None:
        devices = list(placement.devices) or placement.max_ranks
        if placement.on != "local":
            # The devices of other hosts are not known here.
            devices = ["cuda:0" if torch.cuda.is_available() else "cpu"] * placement.start_ranks
    if devices is None:
        given = {"policy": policy != "cadence", "backend": backend != "auto", "wire": wire != "fp32"}
        given["outer"] = outer != "mean"
        for name in (name for name, is_given in given.items() if is_given):
            raise TrainError(
                f"{name}= is for several devices, and devices= is not given. {_ADVICE} Or start the program "
                "with `fdl launch --ranks 2`."
            )
        return None
    if device != "auto":
        raise TrainError(
            f"device={str(device)!r} and devices={devices!r} were given. Use device for one device, devices "
            "for several."
        )
    parsed = parse_devices(devices)
    if placement is None or placement.on == "local":
        placement = Placement(devices=tuple(map(str, parsed)))
    settings = RankSettings(parsed, policy, backend, wire, found, placement)
    _check(settings)
    return settings


def _launched(devices: Any, device: Any) -> Placement | None:
    """Return where `fdl launch` or torchrun wants ranks to run, if one of them started this program.

    In a process that torchrun started as a rank, this does not return: the process serves as a rank. Devices
    that the program names itself take precedence.
    """
    if devices is None and device == "auto":
        serve_if_rank()
        note_launch_used()
        return launched_placement()
    note_launch_used()  # the warning below is enough
    named = f"device={str(device)!r}" if devices is None else f"devices={devices!r}"
    launched = launched_placement()
    if (
        torchrun_variables() is not None
        and (launched is None or not launched.session)
        and not _has_own_group()
    ):
        raise TrainError(
            f"torchrun started this process as one of several ranks, and {named} is given: every process "
            f"would train a model of its own, on all data. Leave out {named.partition('=')[0]}, and the "
            "ranks train one model together."
        )
    if launched is not None:
        log.warn(
            "%s takes precedence over `fdl launch` (%s): this Trainer does not use those ranks. Leave out %s "
            "to train on them.",
            named,
            launched.describe(),
            named.partition("=")[0],
        )
    return None


def _has_own_group() -> bool:
    """Return whether the program connects its processes itself, as for DistributedDataParallel."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def parse_devices(devices: Any) -> tuple[torch.device, ...]:
    """Return the devices that a user named; a number means CUDA devices if there are any, else CPU ranks.

    >>> parse_devices(["cpu", "cpu"])
    (device(type='cpu'), device(type='cpu'))
    """
    devices = as_integer(devices)
    if type(devices) is int:
        if devices < 1:
            raise TrainError(f"devices={devices}. {_ADVICE}")
        if not torch.cuda.is_available():
            return (torch.device("cpu"),) * devices
        if devices > torch.cuda.device_count():
            raise TrainError(
                f"devices={devices}, and this machine has {torch.cuda.device_count()} CUDA devices. Name "
                "them to use one several times: devices=['cuda:0', 'cuda:0']."
            )
        return tuple(torch.device("cuda", index) for index in range(devices))
    if isinstance(devices, str | torch.device) or not isinstance(devices, Sequence) or not devices:
        raise TrainError(f"devices={devices!r}. {_ADVICE}")
    return tuple(
        parse_device(
            each,
            error=TrainError,
            advice=_ADVICE,
            advice_without_cuda="Write devices=['cpu', 'cpu'].",
            label=f"devices[{index}]={each!r}",
        )
        for index, each in enumerate(devices)
    )


def _outer(outer: Any) -> OuterOptimizer:
    if isinstance(outer, str):
        if outer not in _OUTER:
            raise TrainError(f"outer={outer!r}. {suggestion(outer, [*_OUTER], known_as='values')}")
        return _OUTER[outer]()
    if not callable(getattr(outer, "update", None)) or not hasattr(outer, "has_momentum"):
        raise TrainError(
            f"outer={outer!r} is not an outer optimizer. Use 'mean', 'slow_momentum', 'nesterov', or an "
            "object of flodl.distributed.reduction."
        )
    found: OuterOptimizer = outer
    return found


def check_tail(ranks: RankSettings, tail: str) -> None:
    """Raise for a tail with which ranks would not make the same updates."""
    if ranks.policy == "sync" and tail == "drop":
        raise TrainError(
            "tail='drop' leaves out batches, and with policy='sync' all ranks make the same updates. Use "
            "tail='eager', or a Loader with drop_last=True."
        )


def _check(settings: RankSettings) -> None:
    kinds = {device.type for device in settings.devices}
    if settings.is_local and settings.backend == "nccl" and kinds != {"cuda"}:
        names = ", ".join(map(str, settings.devices))
        raise TrainError(f"backend='nccl' needs CUDA devices, and devices are {names}. Use backend='auto'.")
    if settings.policy == "sync" and not isinstance(settings.outer, Mean):
        raise TrainError(
            f"outer={settings.outer!r} acts on windows of local steps, and with policy='sync' ranks average "
            "every gradient. Use policy='cadence', or leave out outer."
        )
