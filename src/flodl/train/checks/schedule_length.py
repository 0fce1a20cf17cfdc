"""Schedules whose length does not fit the run: they count updates, not epochs or batches."""

from __future__ import annotations

from typing import Any

from flodl.optim import CosineScheduler, OneCycleLR, StepSchedule, WarmupScheduler

from .schedule_units import in_updates, last_milestone

# A rate up to this part of the highest one trains nothing. The factor allows for the rounding of powers.
NEGLIGIBLE = 1e-4 * (1 + 1e-9)
# A rate up to this part of the highest one is hardly intended for most of a run.
TINY = 1e-3 * (1 + 1e-9)
# With fewer updates in an epoch, a milestone may as well be meant in updates.
MANY_UPDATES = 4
NUM_SAMPLES = 32
# The number of distinct rates from which a decay is smooth.
NUM_SMOOTH = 5
# A decay that is over within this part of a run was hardly meant, even one in steps.
EARLY = 0.05


def schedule_ends_early(schedule: Any, *, per_epoch: int, epochs: int) -> str:
    """Return a warning if a schedule has decayed completely within the first epoch or early in a run, or "".

    It was then probably written in epochs. Only schedules of flodl are asked: they have no side effects.

    >>> from flodl.optim import CosineScheduler
    >>> schedule_ends_early(CosineScheduler(0.1, 0.0, 10), per_epoch=1000, epochs=10)[:71]
    'the schedule counts updates, and an epoch has 1000: within the first ha'
    >>> schedule_ends_early(CosineScheduler(0.1, 0.0, 10_000), per_epoch=1000, epochs=10)
    ''
    """
    if epochs < 2 or per_epoch < 2 or not isinstance(schedule, StepSchedule):
        return ""
    total = per_epoch * epochs
    # A warm-up that was meant in epochs is over after a few steps.
    highest = max(map(schedule.lr, _first(per_epoch)))
    rest = [schedule.lr(step) for step in _spread(per_epoch // 2, total)]
    is_constant = max(rest) == min(rest) and rest[0] < highest / 2
    if not is_constant and max(rest) > highest * NEGLIGIBLE:
        return _decays_early(schedule, per_epoch=per_epoch, epochs=epochs)
    return (
        f"the schedule counts updates, and an epoch has {per_epoch}: within the first half of the first of "
        f"{epochs} epochs, the learning rate falls from {highest:g} to {rest[0]:g} "
        f"{_afterwards(rest[0], rest[-1])}. If {schedule!r} was meant in epochs, "
        f"{in_updates(schedule, per_epoch)}; the whole run has {total} updates."
    )


def schedule_is_over(schedule: Any, *, step: int, left: int | None) -> str:
    """Return a warning if a schedule has decayed completely before a run that continues, or "".

    `left` is the most updates that are left, None if it is unknown.

    >>> from flodl.optim import CosineScheduler
    >>> schedule_is_over(CosineScheduler(0.1, 0.0, 10), step=10, left=10)[:62]
    'the schedule is over: this run continues after 10 updates, and'
    >>> schedule_is_over(CosineScheduler(0.1, 0.0, 20), step=10, left=10)
    ''
    """
    if step < 1 or not isinstance(schedule, StepSchedule):
        return ""
    highest = max(map(schedule.lr, _spread(0, step)))
    rest = max(map(schedule.lr, _spread(step, step + (left or 1))))
    if rest > highest * NEGLIGIBLE:
        return ""
    return (
        f"the schedule is over: this run continues after {step} updates, and the learning rate fell from "
        f"{highest:g} to {rest:g} and stays there, so nothing more is learned. {schedule!r} counts all "
        "updates of a run: give it as many as the run has with its additional epochs."
    )


def schedule_counts_batches(schedule: Any, *, accumulate: int, num_batches: int, epochs: int) -> str:
    """Return a warning if a schedule has as many updates as a run that accumulates has batches, or "".

    >>> from flodl.optim import CosineScheduler
    >>> schedule_counts_batches(CosineScheduler(0.1, 0.0, 192), accumulate=8, num_batches=64, epochs=3)[:64]
    'the schedule is 192 updates long and the run has 192 batches, bu'
    >>> schedule_counts_batches(CosineScheduler(0.1, 0.0, 24), accumulate=8, num_batches=64, epochs=3)
    ''
    """
    batches, per_epoch = num_batches * epochs, -(-num_batches // accumulate)
    length = next((one for one in _lengths(schedule) if abs(one - batches) <= epochs), None)
    # Where an epoch has few batches, the two numbers may be nearly equal.
    if accumulate == 1 or length is None or 2 * length < 3 * per_epoch * epochs:
        return ""
    total = per_epoch * epochs
    return (
        f"the schedule is {length} updates long and the run has {batches} batches, but with "
        f"accumulate={accumulate} only {total} updates, so it ends at a learning rate of "
        f"{schedule.lr(total - 1):g}. Schedules count "
        f"updates: {schedule!r} needs {per_epoch} for each epoch, -(-len(loader) // {accumulate})."
    )


def rate_becomes_zero(schedule: Any, *, total: int, per_epoch: int) -> str:
    """Return a warning if the learning rate is 0 during at least the whole last epoch of a run, or "".

    A schedule that is shorter than an epoch was meant in epochs, which `schedule_ends_early` reports.

    >>> from flodl.optim import CosineScheduler
    >>> rate_becomes_zero(CosineScheduler(0.1, 0.0, 50), total=100, per_epoch=10)[:62]
    'the learning rate is 0 from update 50 on, and the run has 100,'
    >>> rate_becomes_zero(CosineScheduler(0.1, 0.0, 91), total=100, per_epoch=10)
    ''
    """
    if total <= per_epoch or not isinstance(schedule, StepSchedule):
        return ""
    if any(map(schedule.lr, _spread(total - per_epoch, total))) or not any(map(schedule.lr, _first(total))):
        return ""
    first = _settled(schedule, total, 0.0)
    if first < per_epoch:
        return ""
    return (
        f"the learning rate is 0 from update {first} on, and the run has {total}, {per_epoch} in each epoch: "
        f"nothing is learned after that. Give {schedule!r} as many updates as the run has, or train fewer "
        "epochs."
    )


def _lengths(schedule: Any) -> list[int]:
    """Return the number of updates of a schedule that ends, with and without a warm-up before it.

    >>> from flodl.optim import CosineScheduler, ExponentialLR, WarmupScheduler
    >>> _lengths(WarmupScheduler(CosineScheduler(0.1, 0.0, 90), 0.1, 10)), _lengths(ExponentialLR(0.1, 0.9))
    ([100, 90], [])
    """
    if isinstance(schedule, WarmupScheduler):
        inner = _lengths(schedule.inner)
        return [*(schedule.warm + one for one in inner), *inner]
    return [schedule.total] if isinstance(schedule, CosineScheduler | OneCycleLR) else []


def _decays_early(schedule: StepSchedule, *, per_epoch: int, epochs: int) -> str:
    """Return a warning if the rate is negligible, or a smooth decay is over, for more than half of a run.

    The same holds for a tiny rate in most of it, and for milestones that would all fit into its epochs.
    """
    total = per_epoch * epochs
    earlier = [schedule.lr(step) for step in _spread(0, total // 2)]
    rest = [schedule.lr(step) for step in _spread(total // 2 - 1, total)]
    last, highest = rest[-1], max(map(schedule.lr, _first(total)))
    first = _settled(schedule, total, max(last, highest * NEGLIGIBLE))
    milestone = last_milestone(schedule)
    is_smooth = len(set(earlier)) >= NUM_SMOOTH
    # A rate that is lowered in steps may well be meant, unless that is over at once.
    is_over = max(rest) == min(rest) and last < highest / 2 and (is_smooth or first <= EARLY * total)
    tiny = highest * TINY
    if milestone is not None and milestone < epochs and per_epoch >= MANY_UPDATES:
        first = milestone
    elif _highest(schedule, total // 5, total) <= tiny or (is_smooth and max(rest) <= tiny):
        first = _settled(schedule, total, max(last, tiny))
    elif not is_over and max(rest) > highest * NEGLIGIBLE:
        return ""
    highest = max(map(schedule.lr, _first(first + 1)))
    low = last if max(rest) == min(rest) else schedule.lr(first)
    return (
        f"the schedule counts updates, and the run has {total}, {per_epoch} in each epoch: the learning rate "
        f"falls from {highest:g} to {low:g} within the first {first} updates {_afterwards(low, last)}. If "
        f"{schedule!r} was meant in epochs, {in_updates(schedule, per_epoch)}."
    )


def _highest(schedule: StepSchedule, first: int, stop: int) -> float:
    """Return the highest rate of a range of updates; a cycle of up to 1000 updates is seen as a whole."""
    return max(map(schedule.lr, {*range(first, min(first + 1000, stop)), *_spread(first, stop)}))


def _afterwards(low: float, last: float) -> str:
    return "and further after that" if last < low else "and stays there"


def _settled(schedule: StepSchedule, total: int, limit: float) -> int:
    """Return the first update of a run from which the rate stays at or below a limit.

    >>> from flodl.optim import MultiStepLR
    >>> _settled(MultiStepLR(0.1, (30, 60, 90), 0.1), 10_200, 0.00011)
    90
    """
    steps = [*_first(total), total]
    at = max((index for index, step in enumerate(steps[:-1]) if schedule.lr(step) > limit), default=None)
    if at is None:
        return 0
    above, below = steps[at], steps[at + 1]
    while below - above > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if schedule.lr(middle) > limit else (above, middle)
    return below


def _first(stop: int) -> list[int]:
    """Return steps that cover the steps before `stop`, and all of the first ones, as of a short warm-up."""
    return sorted({*range(min(stop, 2 * NUM_SAMPLES)), *_spread(0, stop)})


def _spread(first: int, stop: int) -> list[int]:
    """Return steps that cover a range, its first and last one included."""
    last = stop - 1
    return sorted({first + (last - first) * index // (NUM_SAMPLES - 1) for index in range(NUM_SAMPLES)})
