"""What to change in a schedule whose numbers were meant in epochs, and a warm-up longer than the run."""

from __future__ import annotations

from typing import Any

from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    StepDecay,
    WarmupScheduler,
)

# The arguments that count updates.
_COUNTS = {
    CosineScheduler: ("total",),
    CyclicLR: ("up", "down"),
    MultiStepLR: ("milestones",),
    OneCycleLR: ("total",),
    StepDecay: ("step_size",),
}


def in_updates(schedule: Any, per_epoch: int) -> str:
    """Return how to write a schedule that was meant in epochs.

    >>> in_updates(WarmupScheduler(CosineScheduler(0.1, 0.0, 9), target=0.1, warm=1), 50)
    'multiply its warm and total by 50'
    >>> in_updates(ExponentialLR(0.1, 0.95), 50)
    'write gamma=0.95 ** (1 / 50)'
    """
    counts, gamma = _counts(schedule), _gamma(schedule)
    parts = [f"multiply its {' and '.join(counts)} by {per_epoch}"] if counts else []
    if gamma is not None:
        parts.append(f"write gamma={gamma:g} ** (1 / {per_epoch})")
    return " and ".join(parts) or f"multiply its numbers of updates by {per_epoch}"


def warm_up_never_ends(schedule: Any, *, total: int) -> str:
    """Return a warning if a run ends before its warm-up does, or "".

    >>> schedule = WarmupScheduler(CosineScheduler(0.1, 0.0, 9000), target=0.1, warm=1000)
    >>> warm_up_never_ends(schedule, total=80)[:68]
    'the warm-up of the schedule has 1000 updates, and the run has only 8'
    >>> warm_up_never_ends(schedule, total=1000)
    ''
    """
    if not isinstance(schedule, WarmupScheduler) or schedule.warm <= total:
        return ""
    return (
        f"the warm-up of the schedule has {schedule.warm} updates, and the run has only {total}: the "
        f"learning rate rises to {schedule.lr(total - 1):g} and never reaches {schedule.target:g}. Give "
        f"{schedule!r} a smaller warm, or train for more epochs."
    )


def schedule_is_too_long(schedule: Any, *, total: int) -> str:
    """Return a warning if a run ends before the peak or within the first third of a schedule, or "".

    >>> schedule_is_too_long(OneCycleLR(0.1, 1000), total=250)[:67]
    'the schedule reaches its peak of 0.1 after 300 updates, and the run'
    >>> schedule_is_too_long(CosineScheduler(0.1, 0.0, 1000), total=250)[:60]
    'the schedule is 1000 updates long, and the run has only 250:'
    >>> schedule_is_too_long(CosineScheduler(0.1, 0.0, 1000), total=400)
    ''
    """
    peak, length = _peak(schedule), _length(schedule)
    last = f"{schedule.lr(total - 1):g}" if peak or length else ""
    remedy = f"Give {schedule!r} as many updates as the run has, or train for more epochs."
    if peak is not None and peak[0] > total:
        return (
            f"the schedule reaches its peak of {peak[1]:g} after {peak[0]} updates, and the run has only "
            f"{total}: the learning rate rises to {last}. {remedy}"
        )
    if length is not None and length > 3 * total:
        return (
            f"the schedule is {length} updates long, and the run has only {total}: the learning rate goes "
            f"from {schedule.lr(0):g} to {last}, and the rest of the schedule is not used. {remedy}"
        )
    return ""


def decay_rises(schedule: Any, *, total: int) -> str:
    """Return a warning if a schedule that lowers the rate in steps multiplies it by 2 or more, or "".

    >>> decay_rises(StepDecay(0.1, 30, 10), total=100)[:70]
    'the schedule raises the learning rate from 0.1 to 100 within the 100 u'
    >>> decay_rises(StepDecay(0.1, 30, 0.1), total=100)
    ''
    """
    inner = schedule.inner if isinstance(schedule, WarmupScheduler) else schedule
    if not isinstance(inner, StepDecay | MultiStepLR) or inner.gamma < 2 or total < 1:
        return ""
    first, last = inner.base, schedule.lr(total - 1)
    if last <= first:
        return ""
    return (
        f"the schedule raises the learning rate from {first:g} to {last:g} within the {total} updates of the "
        f"run: {inner!r} multiplies it by gamma. To divide it by {inner.gamma:g}, write "
        f"gamma={1 / inner.gamma:g}."
    )


def _peak(schedule: Any) -> tuple[int, float] | None:
    """Return the number of updates before the highest rate of a cycle, and that rate."""
    if isinstance(schedule, WarmupScheduler):
        inner = _peak(schedule.inner)
        return None if inner is None else (schedule.warm + inner[0], inner[1])
    if isinstance(schedule, CyclicLR):
        return schedule.up, schedule.max
    return (schedule.warmup_steps, schedule.max) if isinstance(schedule, OneCycleLR) else None


def _length(schedule: Any) -> int | None:
    """Return the number of updates until a schedule ends, or lowers the rate for the first time."""
    if isinstance(schedule, WarmupScheduler):
        inner = _length(schedule.inner)
        return None if inner is None else schedule.warm + inner
    if isinstance(schedule, CosineScheduler | OneCycleLR):
        return schedule.total
    if isinstance(schedule, MultiStepLR):
        return next(iter(schedule.milestones), None)
    return schedule.step_size if isinstance(schedule, StepDecay) else None


def last_milestone(schedule: Any) -> int | None:
    """Return the last milestone at which a rate is lowered, with a warm-up before it or without.

    >>> last_milestone(MultiStepLR(0.1, [30, 60, 80], 0.1)), last_milestone(StepDecay(0.1, 30, 0.1))
    (80, None)
    """
    if isinstance(schedule, WarmupScheduler):
        inner = last_milestone(schedule.inner)
        return None if inner is None else schedule.warm + inner
    is_lowered = isinstance(schedule, MultiStepLR) and schedule.gamma < 1
    return schedule.milestones[-1] if is_lowered else None


def _counts(schedule: Any) -> list[str]:
    if isinstance(schedule, WarmupScheduler):
        return ["warm", *_counts(schedule.inner)]
    return [name for kind, names in _COUNTS.items() if isinstance(schedule, kind) for name in names]


def _gamma(schedule: Any) -> float | None:
    """Return the factor of each update, if there is one."""
    if isinstance(schedule, WarmupScheduler):
        return _gamma(schedule.inner)
    return schedule.gamma if isinstance(schedule, ExponentialLR) else None
