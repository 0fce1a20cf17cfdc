"""The bridge from a schedule to any torch optimizer, keeping the ratios of its parameter groups."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

from flodl.core import ScheduleError

from ._arguments import number, whole
from .schedule import Schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer


def apply(schedule: Schedule | Callable[[int], float], optimizer: Optimizer) -> ScheduleBridge:
    """Let a schedule, or a plain function of the step, drive an optimizer's learning rates.

    The rate of step 0 is set at once. The schedule gives the rate of the groups it is written for:
    those whose rate is its base, peak or target, and where there are none, the fastest group. Every
    other group keeps the ratio that its rate had to theirs when the bridge was made.

    >>> import torch
    >>> head, body = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> groups = [{"params": head.parameters(), "lr": 1.0}, {"params": body.parameters(), "lr": 0.1}]
    >>> optimizer = torch.optim.SGD(groups)
    >>> bridge = apply(lambda step: 0.5 / (step + 1), optimizer)
    >>> for _ in range(2):
    ...     optimizer.step()
    ...     print([group["lr"] for group in optimizer.param_groups])
    ...     bridge.step()
    [0.5, 0.05]
    [0.25, 0.025]
    """
    return ScheduleBridge(schedule, optimizer)


class ScheduleBridge:
    """Set an optimizer's learning rates from a schedule, one step after another; made by `apply`.

    Call `step()` after each optimizer update. A rate that is a tensor, as captured optimizers use, is
    filled in place. A group that joins later has its ratio taken to the rate that the schedule's group had
    when the bridge was made, so its rate is given in the same terms as the others were; `add_new_groups()`
    before the next update gives it the rate of that update.
    """

    def __init__(self, schedule: Schedule | Callable[[int], float], optimizer: Optimizer) -> None:
        self._schedule = schedule
        self._lr_of = _lr_function(schedule)
        self._optimizer = optimizer
        self._reference = _reference_lr(schedule, optimizer)
        self._ratios: list[float] = []
        self._step = 0
        self._scale = 1.0
        self._lr = 0.0
        self._move(0, 1.0)

    @property
    def lr(self) -> float:
        """The rate that the schedule gives for the next update, the scale included."""
        return self._lr

    @property
    def ratios(self) -> tuple[float, ...]:
        """Each group's rate over the one that the schedule gives."""
        return tuple(self._ratios)

    @property
    def current_step(self) -> int:
        """The number of the next update, the first being 0."""
        return self._step

    @property
    def lr_scale(self) -> float:
        """The factor on top of the schedule, 1.0 unless `scale` changed it."""
        return self._scale

    def step(self) -> None:
        """Count one update, and set the rates for the next."""
        self._move(self._step + 1, self._scale)

    def add_new_groups(self) -> None:
        """Set the rates of groups that joined the optimizer since the last step, if any did."""
        if len(self._optimizer.param_groups) != len(self._ratios):
            self._move(self._step, self._scale)

    def set_step(self, step: int) -> None:
        """Set the rates for update number `step`, and count on from there."""
        whole(
            "set_step",
            "step",
            step,
            at_least=0,
            hint="Steps count optimizer updates from 0, the first update.",
        )
        self._move(int(step), self._scale)

    def scale(self, factor: float) -> None:
        """Multiply the schedule by `factor` from now on; it replaces the factor set before."""
        number("scale", "factor", factor, at_least=0, hint="1.0 gives the schedule as it is.")
        self._move(self._step, float(factor))

    @property
    def watcher(self) -> Any:
        """The schedule that follows a metric, itself or below a warm-up; None where none does."""
        return _find(self._schedule, "observe")

    def observe(self, metric: SupportsFloat) -> None:
        """Hand a metric to a schedule that watches one, and set the rates that follow from it."""
        watcher = self.watcher
        if watcher is None:
            raise ScheduleError(
                f"{type(self._schedule).__name__} depends on the step alone and observes no metric. "
                "Use PlateauScheduler to follow a metric, or leave out observe()."
            )
        watcher.observe(metric)
        self._move(self._step, self._scale)

    def state_dict(self) -> dict[str, Any]:
        """Give the position as plain data, with the state of a schedule that has one."""
        state: dict[str, Any] = {
            "step": self._step,
            "lr_scale": self._scale,
            "reference_lr": self._reference,
            "ratios": list(self._ratios),
        }
        keeper = _find(self._schedule, "state_dict")
        if keeper is not None:
            state["schedule"] = keeper.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` and set the rates of that position; what does not fit changes nothing."""
        if not isinstance(state, Mapping):
            raise ScheduleError(
                f"the state is a {type(state).__name__}, not a mapping. "
                "Load what the bridge's state_dict() gave."
            )
        missing = [key for key in ("step", "lr_scale", "reference_lr", "ratios") if key not in state]
        if missing:
            raise ScheduleError(
                f"the state has no {', '.join(map(repr, missing))}, only {sorted(state)}. "
                "Load what the bridge's state_dict() gave."
            )
        whole("the state", "step", state["step"], at_least=0, hint="Load what state_dict() gave.")
        for key in ("lr_scale", "reference_lr"):
            number("the state", key, state[key], at_least=0, hint="Load what state_dict() gave.")
        ratios = _ratios(state["ratios"])
        saved, present = len(ratios), len(self._optimizer.param_groups)
        if saved != present:
            raise ScheduleError(
                f"the state holds {saved} parameter groups and the optimizer has {present}. "
                "Build the optimizer with the groups that it had when the state was taken, then load."
            )
        keeper = _find(self._schedule, "load_state_dict")
        if (keeper is not None) != ("schedule" in state):
            kept, here = ("no state", "keeps one") if keeper is not None else ("a state", "keeps none")
            raise ScheduleError(
                f"the schedule that was saved has {kept} of its own, and "
                f"{type(self._schedule).__name__} {here}. Resume with the kind of schedule that the run had."
            )
        if keeper is not None:
            keeper.load_state_dict(state["schedule"])
        self._reference = float(state["reference_lr"])
        self._ratios = ratios
        self._move(int(state["step"]), float(state["lr_scale"]))

    def _move(self, step: int, scale: float) -> None:
        lr = _rate(self._schedule, self._lr_of(step), step)
        if not math.isfinite(lr) or lr < 0:
            raise ScheduleError(
                f"{self._schedule!r} gives the learning rate {lr} at step {step}. "
                "A learning rate is finite and not negative. Look at the schedule before training: preview()."
            )
        groups = self._optimizer.param_groups
        self._take_in(groups)
        for group, ratio in zip(groups, self._ratios):
            _write_lr(group, lr * scale * ratio)
        self._step, self._scale, self._lr = step, scale, lr * scale

    def _take_in(self, groups: list[dict[str, Any]]) -> None:
        known = len(self._ratios)
        if len(groups) < known:
            raise ScheduleError(
                f"the optimizer has {len(groups)} parameter groups and had {known} before, so the ratios "
                "no longer belong to them. Build a new optimizer and apply the schedule to it."
            )
        self._ratios.extend(float(group["lr"]) / self._reference for group in groups[known:])


def _lr_function(schedule: Any) -> Callable[[int], float]:
    if not isinstance(schedule, type):
        method = getattr(schedule, "lr", None)
        if callable(method):
            return method  # type: ignore[no-any-return]
        if callable(schedule) and _takes_a_step(schedule):
            return schedule  # type: ignore[no-any-return]
    raise ScheduleError(
        f"{schedule!r} is not a schedule. Give an object with a method lr(step), such as "
        "CosineScheduler(0.1, 0.001, 1000), or a function of the step."
    )


def _takes_a_step(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:
        # Some functions written in C do not say what they take.
        return True
    return True


def _rate(schedule: Any, given: Any, step: int) -> float:
    """Give what a schedule returned as a number."""
    try:
        if not isinstance(given, str):
            return float(given)
    except (TypeError, ValueError):
        pass
    raise ScheduleError(
        f"{schedule!r} gives {given!r} at step {step}, and a learning rate is a number. "
        "Return a float for every step."
    )


def _ratios(given: Any) -> list[float]:
    try:
        return [float(ratio) for ratio in given]
    except (TypeError, ValueError):
        raise ScheduleError(
            f"the state has ratios={given!r}, expected one number for each parameter group. "
            "Load what the bridge's state_dict() gave."
        ) from None


def _reference_lr(schedule: Any, optimizer: Any) -> float:
    """Give the rate, among those of the groups, that the schedule stands for."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups or any("lr" not in group for group in groups):
        raise ScheduleError(
            f"{type(optimizer).__name__} has no parameter groups with an 'lr' to set. Give a torch optimizer."
        )
    rates = [float(group["lr"]) for group in groups]
    meant = _own_rates(schedule)
    lr = next((rate for rate in rates if any(math.isclose(rate, own) for own in meant)), max(rates))
    if not math.isfinite(lr) or lr <= 0:
        raise ScheduleError(
            f"the fastest parameter group has lr={lr}, and the other groups keep their ratio to it. "
            "Build the optimizer with an lr above 0; the schedule replaces it at once. "
            "To resume, apply the schedule before you load the optimizer's state."
        )
    return lr


def _own_rates(schedule: Any) -> list[float]:
    """Give the rates that a schedule was made with, its inner one's last."""
    own = [getattr(schedule, name, None) for name in ("base", "max", "target")]
    inner = getattr(schedule, "inner", None)
    return [float(rate) for rate in own if isinstance(rate, int | float)] + (
        [] if inner is None else _own_rates(inner)
    )


def _find(schedule: Any, method: str) -> Any:
    """Give the schedule that has `method`, looking through a warm-up at what it wraps."""
    while schedule is not None and not callable(getattr(schedule, method, None)):
        schedule = getattr(schedule, "inner", None)
    return schedule


def _write_lr(group: dict[str, Any], value: float) -> None:
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(value)
    else:
        group["lr"] = value
