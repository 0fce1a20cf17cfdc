"""Prepares an optimizer for capture: fused kernels, step counts and learning rates on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

# Parameter groups whose learning rate is a tensor on the device, each with that tensor.
Rates = list[tuple[dict[str, Any], Tensor]]


@dataclass(frozen=True)
class Readiness:
    """Whether an optimizer's update can be captured, and why not.

    `gates` says whether its kernel skips the update itself if a flag on the device is set.
    """

    capturable: bool
    reason: str
    gates: bool = False


def prepare(optimizer: Optimizer) -> Readiness:
    """Enable fused and capturable kernels for this optimizer on CUDA; on other devices nothing changes.

    This is done once, before the first step, so that every tier runs the same kernels.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters or not all(p.is_cuda for p in parameters):
        return Readiness(False, "the parameters are not on a CUDA device")
    name = type(optimizer).__name__
    if is_custom(optimizer):
        return Readiness(
            False, f"{name} is not one of torch's optimizers, so the effects of its update are unknown"
        )
    fused = all(_fuse(optimizer, group) for group in optimizer.param_groups)
    if not fused and not all("capturable" in group for group in optimizer.param_groups):
        return Readiness(False, f"{name} keeps part of its state on the host")
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        # A group may be empty.
        group["lr"] = _on_device(group["lr"], (group["params"] or parameters)[0].device)
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            # Scalars that the optimizer kept on the host so far: step counts, NAdam's product.
            if isinstance(value, Tensor) and value.dim() == 0:
                dtype = torch.float32 if key == "step" else value.dtype
                state[key] = value.to(parameter.device, dtype)
    if fused:
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    if has_step_hooks(optimizer):
        # A replay does not call Python.
        return Readiness(False, "the optimizer has step hooks", fused)
    return Readiness(True, f"{name} runs fused" if fused else f"{name} keeps its state on the device", fused)


def is_custom(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has a custom update, which may keep state anywhere.

    >>> class Own(SGD):
    ...     def step(self, closure=None): ...
    >>> parameters = [torch.nn.Parameter(torch.zeros(1))]
    >>> is_custom(SGD(parameters)), is_custom(Own(parameters))
    (False, True)
    """
    return not type(optimizer).step.__module__.startswith("torch.optim")


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether this optimizer has step hooks, or all optimizers have.

    >>> optimizer = SGD([torch.nn.Parameter(torch.zeros(1))])
    >>> handle = optimizer.register_step_post_hook(print)
    >>> has_step_hooks(optimizer), handle.remove(), has_step_hooks(optimizer)
    (True, None, False)
    """
    own = (getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post"))
    of_all = (getattr(torch_optimizer, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post"))
    return any((*own, *of_all))


def _fuse(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Select the fused kernel unless the user selected another implementation."""
    if not isinstance(optimizer, SGD | Adam | AdamW) or group.get("differentiable"):
        return False
    if group.get("fused") is False or group.get("foreach"):
        return False
    if not all(torch.is_floating_point(p) for p in group["params"]):
        return False
    group["fused"], group["foreach"] = True, False
    return True


def can_skip_first_update(optimizer: Optimizer, *, gates: bool) -> bool:
    """Return whether a first update that a flag on the device skips leaves the right state for the next one.

    `gates` says whether the kernel itself skips it: Adam's state is then zeros, as before a first update.
    SGD's momentum buffer starts as the first gradient, even if that is not finite.

    >>> parameters = [torch.nn.Parameter(torch.zeros(1))]
    >>> optimizers = Adam(parameters), SGD(parameters), SGD(parameters, momentum=0.9)
    >>> [can_skip_first_update(optimizer, gates=True) for optimizer in optimizers]
    [True, True, False]
    """
    if type(optimizer) is SGD:
        return not any(group["momentum"] for group in optimizer.param_groups)
    return gates and type(optimizer) in (Adam, AdamW)


class ChangingSettings:
    """Finds a setting of an optimizer that changes in every update, as momenta do in a cyclic schedule.

    >>> optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    >>> settings = ChangingSettings(optimizer)
    >>> for momentum in (0.9, 0.8, 0.7):
    ...     optimizer.param_groups[0]["momentum"] = momentum
    ...     print(settings.check(), end=" ")
    None None momentum
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before: list[tuple[str, Any]] = []
        self._changed: set[str] = set()

    def check(self) -> str | None:
        """Compare with the last call, and return a setting that has changed twice in a row."""
        now = [(key, value) for _, key, value in host_settings(self._optimizer) if key != "lr"]
        pairs = zip(self._before, now) if len(self._before) == len(now) else ()
        changed = {key for (key, before), (_, value) in pairs if before is not value and before != value}
        again = sorted(changed & self._changed)
        self._before, self._changed = now, changed
        return again[0] if again else None


def unfuse(optimizer: Optimizer) -> None:
    """Disable the fused kernel, which does not support sparse gradients."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False


@contextmanager
def separate_first_updates(optimizer: Optimizer) -> Iterator[None]:
    """Move parameters without a momentum buffer into their own group for one update.

    Torch's fused SGD expects that all parameters of a group have a momentum buffer or that none has. It fails
    when part of a model is unfrozen late, or used for the first time.

    >>> early, late = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    >>> optimizer = SGD([early, late], lr=0.1, momentum=0.9, fused=True)
    >>> early.grad = torch.ones(1)
    >>> optimizer.step()
    >>> late.grad = torch.ones(1)
    >>> with separate_first_updates(optimizer):
    ...     len(optimizer.param_groups), optimizer.step()
    (2, None)
    >>> len(optimizer.param_groups), late
    (1, Parameter containing:
    tensor([0.9000], requires_grad=True))
    """
    groups = optimizer.param_groups
    optimizer.param_groups = [part for group in groups for part in _by_momentum(optimizer, group)]
    try:
        yield
    finally:
        optimizer.param_groups = groups


def _by_momentum(optimizer: Optimizer, group: dict[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(optimizer, SGD) or not group["fused"] or not group["momentum"]:
        return [group]
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for parameter in group["params"]:
        has_momentum = optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
        parts[has_momentum].append(parameter)
    return [{**group, "params": part} for part in parts] if all(parts) else [group]


def _on_device(lr: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(lr, Tensor):
        return lr.to(device, torch.float32)
    # Filled on the device: a copy from the host would synchronize.
    return torch.full((), lr, device=device, dtype=torch.float32)


def device_rates(optimizer: Optimizer) -> Rates:
    """Return the groups whose learning rate is a tensor on the device, each with that tensor."""
    rates = [(group, group.get("lr")) for group in optimizer.param_groups]
    return [(group, lr) for group, lr in rates if isinstance(lr, Tensor) and lr.is_cuda]


def sync_rates(rates: Rates) -> None:
    """Copy a learning rate that was assigned as a number into the tensor that a recording reads.

    If several groups share one tensor, the group that was assigned to gets its own tensor.

    >>> shared = torch.tensor(0.5)
    >>> groups = [{"lr": shared}, {"lr": shared}]
    >>> rates = [(group, shared) for group in groups]
    >>> groups[0]["lr"] = 0.25
    >>> sync_rates(rates), groups, share_a_tensor(rates)
    (None, [{'lr': tensor(0.2500)}, {'lr': tensor(0.5000)}], True)
    """
    for group, lr in rates:
        if (now := group["lr"]) is lr:
            continue
        if sum(other is lr for _, other in rates) == 1:
            lr.fill_(now)
            group["lr"] = lr
        elif not isinstance(now, Tensor) or now.device != lr.device:
            group["lr"] = _on_device(now, lr.device)


def share_a_tensor(rates: Rates) -> bool:
    """Return whether several groups share one tensor as their learning rate."""
    return len({id(lr) for _, lr in rates}) < len(rates)


def are_in_sync(rates: Rates) -> bool:
    """Return whether every group still has the tensor that a recording reads."""
    return all(group["lr"] is lr for group, lr in rates)


def host_settings(optimizer: Optimizer) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the settings that a capture bakes in: everything in a group that is not a tensor.

    Lists are copied, because betas may be changed in place.
    """
    return [
        (group, key, value.copy() if isinstance(value, list) else value)
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params" and not isinstance(value, Tensor)
    ]
