"""Read and change the learning rate of a run, with or without a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat

from torch import Tensor
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.optim import ScheduleBridge


def known_rates(optimizer: Optimizer) -> list[Any]:
    """Return the rates of the groups that have one; an optimizer may choose its steps without."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [rate for rate in rates if isinstance(rate, SupportsFloat)]


def learning_rate(optimizer: Optimizer) -> float | None:
    """Return the learning rate; with several groups, the highest, and None if none of them has a rate."""
    return max(map(float, known_rates(optimizer)), default=None)


def named_rate(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rate under its name in the history, nothing if there is none."""
    rate = learning_rate(optimizer)
    return {} if rate is None else {"lr": rate}


def optimizer_settings(
    optimizer: Optimizer, groups: Iterable[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the current settings of each group, or of `groups`; single values on a device are read."""
    return [
        {
            name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for group in groups or optimizer.param_groups
    ]


def group_ratios(bridge: ScheduleBridge | None) -> tuple[float, ...]:
    """Return the ratio of each group's rate to that of the schedule, if there is one."""
    return () if bridge is None else bridge.ratios


def group_rates(bridge: ScheduleBridge | None) -> tuple[float, ...]:
    """Return the rate that each group had when it was given to a schedule, if there is one."""
    return () if bridge is None else tuple(one * bridge.state_dict()["reference_lr"] for one in bridge.ratios)


def follows_loss(bridge: ScheduleBridge | None) -> bool:
    """Return whether a schedule follows a metric, which is the loss in a trainer."""
    watcher = None if bridge is None else bridge.watcher
    if getattr(watcher, "mode", "min") == "max":
        raise TrainError(
            f"schedule={watcher!r} waits for a metric to rise, and a trainer passes the loss to it. "
            "Use mode='min', or for a different metric the hook ReduceOnPlateau('eval_accuracy', mode='max')."
        )
    return watcher is not None


class FollowedLoss(NamedTuple):
    """The metric of an epoch that a schedule follows, or "", and why it is not the one before, or ""."""

    name: str
    change: str = ""


def followed_loss(
    row: Mapping[str, Any], history: Sequence[Mapping[str, Any]], *, evaluates: bool | None
) -> FollowedLoss:
    """Return the loss that a schedule follows: that of the evaluation if there is one, else that of training.

    `evaluates` is whether every epoch of a run is evaluated or none is; None in a custom loop, which may
    evaluate some. Once that has happened, the other epochs are left out.

    >>> followed_loss({"loss": 1.0}, [], evaluates=None).name
    'loss'
    >>> followed_loss({"loss": 1.0}, [{"loss": 2.0, "eval_loss": 3.0}], evaluates=None).name
    ''
    """
    name = "eval_loss" if "eval_loss" in row else "loss"
    was_evaluated = ["eval_loss" in earlier for earlier in history]
    if evaluates is None and name == "loss" and any(was_evaluated):
        return FollowedLoss(
            "",
            "the schedule follows eval_loss, and this epoch was not evaluated: the schedule leaves out such "
            "epochs. Pass eval_data=… to every epoch.",
        )
    if not history:
        return FollowedLoss(name)
    before = "eval_loss" if (any(was_evaluated) if evaluates is None else was_evaluated[-1]) else "loss"
    if name == before:
        return FollowedLoss(name)
    return FollowedLoss(
        name,
        f"the schedule now follows {name}, and followed {before} before. The two are not compared: the best "
        f"value is forgotten, and the learning rate stays as it is. Pass eval_data=… in every start to "
        "follow eval_loss.",
    )


def forget_best(bridge: ScheduleBridge) -> None:
    """Let a schedule forget the metrics it has seen, but not the rate it has reached."""
    forget = getattr(bridge.watcher, "forget", None)
    if callable(forget):
        forget()


def reset_schedule(bridge: ScheduleBridge | None) -> None:
    """Reset a schedule that follows a metric: it may have seen the values of another run."""
    reset = None if bridge is None else getattr(bridge.watcher, "reset", None)
    if bridge is not None and callable(reset):
        reset()
        bridge.set_step(bridge.current_step)


def scale_rates(optimizer: Optimizer, bridge: ScheduleBridge | None, factor: float, least: float) -> None:
    """Multiply every rate by a factor, in addition to a schedule; no rate goes below `least`."""
    if not isinstance(factor, SupportsFloat) or not factor > 0:
        raise TrainError(f"scale_lr({factor!r}). Use a factor above 0, such as 0.5.")
    if not isinstance(least, SupportsFloat) or not least >= 0:
        raise TrainError(f"scale_lr(…, least={least!r}). Use the lowest rate, a number of at least 0.")
    if bridge is not None:
        lowest = least / bridge.lr if bridge.lr > 0 else 0.0
        bridge.scale(bridge.lr_scale * max(factor, min(lowest, 1.0)))
        return
    if learning_rate(optimizer) is None:
        raise TrainError(
            f"scale_lr({factor!r}): the groups of {type(optimizer).__name__} have no learning rate 'lr' to "
            "scale. Use an optimizer with one, or leave out what changes it, such as ReduceOnPlateau."
        )
    for group in optimizer.param_groups:
        if not isinstance(group.get("lr"), SupportsFloat):
            continue
        rate = float(group["lr"])
        scaled = max(rate * factor, min(least, rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled
