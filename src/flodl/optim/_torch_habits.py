"""What to write in place of the methods of torch's learning rate schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl.core import ScheduleError
from flodl.core.formats import with_article
from flodl.core.usage.calls import ScheduleCallError

_RATES = "the rates of an optimizer are [group['lr'] for group in optimizer.param_groups]."
_APPLY = "bridge = apply(schedule, optimizer)"

OF_SCHEDULES = {
    "step": "It is a function of the number of the update: pass it as schedule= to a TrainStep or a Trainer, "
    f"which advance it themselves. In a loop of your own, write {_APPLY} once, and bridge.step() after every "
    "update.",
    **dict.fromkeys(("get_last_lr", "get_lr"), f"Write schedule.lr(step); {_RATES}"),
    **dict.fromkeys(
        ("state_dict", "load_state_dict"),
        "It depends on nothing but the step. Save the position with the state_dict() of the TrainStep, or of "
        f"{_APPLY}.",
    ),
    "observe": "Only PlateauScheduler follows a metric.",
    **dict.fromkeys(("optimizer", "last_epoch"), f"It belongs to no optimizer: {_APPLY} has the position."),
}
OF_PLATEAUS = {
    **OF_SCHEDULES,
    "step": "Write schedule.observe(metric), once per epoch. With a TrainStep, write "
    "step.schedule.observe(metric), which also sets the rates; a Trainer passes the loss to it.",
}
OF_BRIDGES = {
    **dict.fromkeys(("get_last_lr", "get_lr"), f"Write bridge.lr; {_RATES}"),
    "last_epoch": "Write bridge.current_step, the number of updates.",
    "base_lrs": "Write bridge.ratios, the ratio of each group to the schedule.",
}


class ScheduleAttributeError(ScheduleError, AttributeError):
    """A schedule does not have this attribute."""


class TorchHabits:
    """The base of schedules: an attribute of torch's schedulers raises an error with what to write instead.

    >>> class Constant(TorchHabits): ...
    >>> Constant().get_last_lr()
    Traceback (most recent call last):
    flodl.optim._torch_habits.ScheduleAttributeError: a Constant has no get_last_lr. ...
    """

    _instead = OF_SCHEDULES

    # Not for type checkers, to which every name would be one.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name.startswith("_") or name not in kind._instead:
                raise AttributeError(
                    f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise ScheduleAttributeError(
                f"{with_article(kind.__name__)} has no {name}. {kind._instead[name]}"
            )


def check_step(metric: tuple[object, ...], *, is_advanced: bool) -> None:
    """Raise if a bridge is stepped with a metric, or where a training step advances it.

    >>> check_step((), is_advanced=False)
    """
    if metric:
        raise ScheduleCallError(
            f"step got {type(metric[0]).__name__}, and takes nothing. A schedule counts updates; a "
            "PlateauScheduler gets a metric with observe(metric), once per epoch."
        )
    if is_advanced:
        raise ScheduleError(
            "step() was called on the schedule of a TrainStep, which advances it after every update: it "
            "would advance twice. Remove the call. To move it on purpose, call set_step(number)."
        )
