"""Setting the learning rates of a torch optimizer from a schedule, keeping the ratios of its groups."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

from flodl.core import ScheduleError
from flodl.core.formats import a_type
from flodl.core.usage.calls import ScheduleCallError, explain_calls, explain_creation, explain_methods

from ._arguments import check_integer, check_number
from ._rate_mistakes import (
    highest_text,
    probable_factors_from,
    torch_scheduler_text,
    unused_rate,
    warn_of_factors,
    warn_of_factors_at_first,
    warn_of_factors_by_size,
    warn_of_other_rate,
)
from ._torch_habits import OF_BRIDGES, TorchHabits, check_step
from ._unobserved import Unobserved
from ._update_order import UpdateOrder
from .plateau import PlateauScheduler
from .schedule import Schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer

# The largest float32 number: torch cannot multiply float32 gradients by a larger one.
_LARGEST = 3.4028234663852886e38


_OF_APPLY = {
    "last_epoch": "Write bridge.set_step(number).",
}


@explain_calls(ScheduleCallError, elsewhere=_OF_APPLY, example="Write apply(schedule, optimizer).")
def apply(schedule: Schedule | Callable[[int], float], optimizer: Optimizer) -> ScheduleBridge:
    """Set an optimizer's learning rates from a schedule or a plain function of the step.

    The rate of step 0 is set immediately. The schedule sets the rate of the groups whose rate is its base,
    peak or target, or of the group with the highest rate if there are none. Every other group keeps the
    ratio to it that it had when the bridge was created.

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


@explain_methods(
    ScheduleCallError, elsewhere={"epoch": "Write bridge.set_step(number)."}, without=("advance",)
)
@explain_creation(ScheduleCallError, elsewhere=_OF_APPLY, example="Write apply(schedule, optimizer).")
class ScheduleBridge(TorchHabits):
    """Set an optimizer's learning rates from a schedule, step by step; created by `apply`.

    Call `step()` after each optimizer update. A rate that is a tensor, as captured optimizers use, is
    filled in place. The ratio of a group that is added later is relative to the rate that the schedule's
    group had when the bridge was created, as for the other groups. Call `add_new_groups()` before the next
    update to set its rate.
    """

    _instead = OF_BRIDGES

    def __init__(self, schedule: Schedule | Callable[[int], float], optimizer: Optimizer) -> None:
        if hasattr(schedule, "param_groups") and not hasattr(optimizer, "param_groups"):
            raise ScheduleError(
                f"apply got {type(schedule).__name__}, an optimizer, as the schedule. The schedule comes "
                "first: apply(schedule, optimizer)."
            )
        self._schedule = schedule
        self._lr_of = _lr_function(schedule)
        self._optimizer = optimizer
        self._reference = _reference_lr(schedule, optimizer)
        self._ratios: list[float] = []
        self._step = 0
        self._scale = 1.0
        self._lr = 0.0
        # The rates as they were written, to notice that something else has set one.
        self._written: list[Any] = []
        # The groups they were written to: loading the state of an optimizer replaces the list.
        self._groups: list[dict[str, Any]] = []
        self._has_warned = False
        self._may_be_factors = True
        # The highest rate so far, and the one from which on a rate is probably a factor.
        self._highest, self._factors_from = 0.0, math.inf
        # Copied and pickled together with the schedule.
        self._identity = object()
        # Whether a training step advances it, so that `step` would do it twice.
        self.is_advanced = False
        self._unobserved = Unobserved(self.watcher)
        self._unobserved.note_at_end_of(self)
        self._order = UpdateOrder(optimizer.param_groups)
        if self.watcher is None:
            self._order.note_at_end_of(self, self._lr_of)
        try:
            self._set_rates(0, 1.0)
        except (TypeError, AttributeError) as error:
            raise _wrong_argument(schedule, error) from error
        # That the rate of the optimizer is not used, if it differs from those of the schedule, or "".
        self.note = ""
        if warn_of_factors_at_first(self._lr, self._reference):
            self._may_be_factors = False
        else:
            own, has_ratios = _chosen_rates(schedule), len(set(self._ratios)) > 1
            self.note = unused_rate(own, self._lr, optimizer, self._reference, has_ratios=has_ratios)
            self._factors_from = probable_factors_from(schedule, optimizer, self._reference, first=self._lr)
            self._look_at(self._lr)

    @property
    def schedule(self) -> Schedule | Callable[[int], float]:
        """The schedule that was given to `apply`."""
        return self._schedule

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that was given to `apply`."""
        return self._optimizer

    @property
    def lr(self) -> float:
        """The schedule's rate for the next update, including the scale."""
        return self._lr

    @property
    def highest_note(self) -> str:
        """That a function has set higher rates than the optimizer was given, or ""."""
        return highest_text(self._schedule, self._optimizer, self._reference, self._highest)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio of each group's rate to the schedule's rate."""
        return tuple(self._ratios)

    @property
    def current_step(self) -> int:
        """The number of the next update, starting at 0."""
        return self._step

    @property
    def lr_scale(self) -> float:
        """The factor applied to the schedule; 1.0 unless `scale` changed it."""
        return self._scale

    def step(self, *metric: object) -> None:
        """Advance by one update and set the rates for the next one; a `TrainStep` does it itself."""
        check_step(metric, is_advanced=self.is_advanced)
        self._unobserved.count_step()
        self._order.count_step()
        self.advance()

    def advance(self) -> None:
        """Do what `step` does, for the training step that owns the schedule."""
        for group, written in zip(self._optimizer.param_groups, self._written):
            if group["lr"] is not written and not self._has_warned:
                was_loaded = self._optimizer.param_groups is not self._groups
                self._has_warned = warn_of_other_rate(group["lr"], written, self._step, was_loaded=was_loaded)
        self._set_rates(self._step + 1, self._scale)

    def add_new_groups(self) -> None:
        """Set the rates of groups that were added to the optimizer since the last step, if any."""
        if len(self._optimizer.param_groups) != len(self._ratios):
            self._set_rates(self._step, self._scale)

    def set_step(self, step: int) -> None:
        """Set the rates for update number `step`, and continue from there."""
        check_integer(
            "set_step",
            "step",
            step,
            at_least=0,
            hint="Steps count optimizer updates from 0, the first update.",
        )
        self._set_rates(int(step), self._scale)

    def scale(self, factor: float) -> None:
        """Multiply the schedule by `factor` from now on, replacing the previous factor."""
        check_number("scale", "factor", factor, at_least=0, hint="1.0 leaves the schedule unchanged.")
        self._set_rates(self._step, float(factor))

    @property
    def watcher(self) -> Any:
        """The schedule that follows a metric, possibly inside a warm-up, or None."""
        return _find(self._schedule, "observe")

    @property
    def is_idle(self) -> bool:
        """Whether the schedule follows a metric, and has observed none so far."""
        return getattr(self.watcher, "has_observed", True) is False

    def observe(self, metric: SupportsFloat) -> None:
        """Pass a metric to a schedule that follows one, and update the rates."""
        watcher = self.watcher
        if watcher is None:
            raise ScheduleError(
                f"{type(self._schedule).__name__} depends only on the step and does not observe a metric. "
                "Use PlateauScheduler to follow a metric, or do not call observe()."
            )
        if isinstance(watcher, PlateauScheduler):
            watcher.take_turn(self._identity)
        watcher.observe(metric)
        self._set_rates(self._step, self._scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data, including the state of the schedule if it has one."""
        state: dict[str, Any] = {
            "step": self._step,
            "lr_scale": self._scale,
            "reference_lr": self._reference,
            "ratios": list(self._ratios),
        }
        stateful = _find(self._schedule, "state_dict")
        if stateful is not None:
            state["schedule"] = stateful.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` and set the rates; a state that does not match changes nothing."""
        if not isinstance(state, Mapping):
            raise ScheduleError(
                f"the state is {a_type(state)}, not a mapping. Load the result of the bridge's state_dict()."
            )
        missing = [key for key in ("step", "lr_scale", "reference_lr", "ratios") if key not in state]
        if missing:
            raise ScheduleError(
                f"the state has no {', '.join(map(repr, missing))}, only {sorted(state)}. "
                "Load the result of the bridge's state_dict()."
            )
        check_integer("the state", "step", state["step"], at_least=0, hint="Load the result of state_dict().")
        for key in ("lr_scale", "reference_lr"):
            check_number("the state", key, state[key], at_least=0, hint="Load the result of state_dict().")
        ratios = _ratios(state["ratios"])
        saved, present = len(ratios), len(self._optimizer.param_groups)
        if saved != present:
            raise ScheduleError(
                f"the state has {saved} parameter groups and the optimizer has {present}. "
                "Build the optimizer with the groups that it had when the state was saved, then load."
            )
        stateful = _find(self._schedule, "load_state_dict")
        if (stateful is not None) != ("schedule" in state):
            saved_has, own_has = ("no", "one") if stateful is not None else ("a", "none")
            raise ScheduleError(
                f"the saved schedule has {saved_has} state of its own, and {type(self._schedule).__name__} "
                f"has {own_has}. Resume with the same kind of schedule."
            )
        if stateful is not None:
            stateful.load_state_dict(state["schedule"])
        self._reference = float(state["reference_lr"])
        self._ratios = ratios
        self._set_rates(int(state["step"]), float(state["lr_scale"]))

    def _set_rates(self, step: int, scale: float) -> None:
        lr = _rate(self._schedule, self._lr_of(step), step)
        rate = lr * scale
        if not (lr >= 0 and rate <= _LARGEST):
            raise ScheduleError(
                f"{self._schedule!r} returned the learning rate {lr} at step {step}"
                f"{f', times {scale:g}' if scale != 1.0 else ''}. A learning rate must be finite "
                "in float32, and not negative. Check the schedule with preview()."
            )
        self._order.is_moved |= step > 0 or scale != 1.0
        groups = self._optimizer.param_groups
        if len(groups) != len(self._ratios):
            self._add_ratios(groups)
        self._written = [_write_lr(group, rate * ratio) for group, ratio in zip(groups, self._ratios)]
        if self._lr == 1.0 >= rate and self._may_be_factors and step == self._step + 1:
            # A search for a learning rate continues with higher ones; factors end at 1.
            self._may_be_factors = False
            warn_of_factors(self._schedule, self._optimizer, self._reference)
        self._step, self._scale, self._lr, self._groups = step, scale, rate, groups
        if rate > self._highest:
            self._look_at(rate)

    def _look_at(self, highest: float) -> None:
        """Take a new highest rate, and warn once if it is probably a factor."""
        self._highest = highest
        if highest >= self._factors_from and self._may_be_factors:
            self._may_be_factors = False
            warn_of_factors_by_size(highest, self._reference)

    def _add_ratios(self, groups: list[dict[str, Any]]) -> None:
        known = len(self._ratios)
        if len(groups) < known:
            raise ScheduleError(
                f"the optimizer has {len(groups)} parameter groups but had {known} before, so the ratios "
                "no longer match. Build a new optimizer and apply the schedule to it."
            )
        self._ratios.extend(float(group["lr"]) / self._reference for group in groups[known:])


def _lr_function(schedule: Any) -> Callable[[int], float]:
    if not isinstance(schedule, type):
        method = getattr(schedule, "lr", None)
        if callable(method):
            return method  # type: ignore[no-any-return]
        if callable(schedule) and _accepts_step(schedule):
            return schedule  # type: ignore[no-any-return]
    kind = schedule if isinstance(schedule, type) else type(schedule)
    if kind.__module__.startswith("torch.optim."):
        raise ScheduleError(torch_scheduler_text(kind))
    raise ScheduleError(
        f"{schedule!r} is not a schedule. Pass an object with a method lr(step), such as "
        "CosineScheduler(0.1, 0.001, 1000), or a function of the step."
    )


def _accepts_step(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:
        # Some C functions have no signature.
        return True
    return True


def _wrong_argument(schedule: Any, error: Exception) -> ScheduleError:
    """Return an error for a function of something else, as `lambda optimizer: StepLR(optimizer, 1)`."""
    return ScheduleError(
        f"{schedule!r} raised {type(error).__name__} when it was called with step 0: {error}. A schedule "
        "takes the number of the update, an int, and returns the learning rate. It does not take an "
        "optimizer, and a torch scheduler is not a schedule: use one from flodl.optim, such as "
        "StepDecay, or a function of the step."
    )


def _rate(schedule: Any, returned: Any, step: int) -> float:
    """Return the result of a schedule as a float."""
    try:
        if not isinstance(returned, str):
            return float(returned)
    except (TypeError, ValueError):
        pass
    raise ScheduleError(
        f"{schedule!r} returned {returned!r} at step {step}; expected a number. "
        "Return a float for every step."
    )


def _ratios(saved: Any) -> list[float]:
    try:
        return [float(ratio) for ratio in saved]
    except (TypeError, ValueError):
        raise ScheduleError(
            f"the state has ratios={saved!r}, expected one number for each parameter group. "
            "Load the result of the bridge's state_dict()."
        ) from None


def _reference_lr(schedule: Any, optimizer: Any) -> float:
    """Return the group rate that the schedule replaces."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups or any(group.get("lr") is None for group in groups):
        raise ScheduleError(
            f"{type(optimizer).__name__} has no parameter groups with an 'lr' to set. Pass a torch optimizer."
        )
    rates = [float(group["lr"]) for group in groups]
    own_rates = _own_rates(schedule)
    lr = next((rate for rate in rates if any(math.isclose(rate, own) for own in own_rates)), max(rates))
    if not math.isfinite(lr) or lr <= 0:
        raise ScheduleError(
            f"the highest lr of the parameter groups is {lr}, and the other groups keep their ratio to it. "
            "Build the optimizer with an lr above 0; the schedule replaces it immediately. "
            "To resume, apply the schedule before you load the optimizer's state."
        )
    return lr


def _own_rates(schedule: Any) -> list[float]:
    """Return the rates that a schedule was created with, followed by those of its inner schedule."""
    own = [getattr(schedule, name, None) for name in ("base", "max", "target")]
    inner = getattr(schedule, "inner", None)
    return [float(rate) for rate in own if isinstance(rate, int | float)] + (
        [] if inner is None else _own_rates(inner)
    )


def _chosen_rates(schedule: Any) -> list[float]:
    """Return the same of a schedule of flodl; others may have attributes with other meanings."""
    return _own_rates(schedule) if isinstance(schedule, TorchHabits) else []


def _find(schedule: Any, method: str) -> Any:
    """Return the schedule that has `method`: this one, or one that it wraps."""
    while schedule is not None and not callable(getattr(schedule, method, None)):
        schedule = getattr(schedule, "inner", None)
    return schedule


def _write_lr(group: dict[str, Any], value: float) -> Any:
    """Set the rate of a group, and return the object that it has now."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(value)
    else:
        group["lr"] = value
    return group["lr"]
