"""The means of an epoch, without values that cover only a part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import isclose
from typing import Any

from .run import Run

# The sums of the values that occur together: their names, and the weight with their sums.
Sums = Sequence[tuple[Sequence[str], Sequence[float]]]


def epoch_means(run: Run) -> dict[str, float]:
    """Return the means of the loss and of the named values; report and leave out incomplete ones."""
    means = {name: value.item() for name, value in run.session.train_step.means().items()}
    return _without_partial(run, _without_missing(run, means))


def _without_missing(run: Run, means: dict[str, float]) -> dict[str, float]:
    """Leave out the values that the step function did not return in this epoch, and report them once."""
    if not any(map(math.isnan, means.values())):
        return means
    totals = run.session.train_step.state_dict()["means"]
    counted = {name for names, sums in totals if sums[0] > 0 for name in names}
    missing = [name for name in means if name not in counted] if "loss" in counted else []
    if missing and "missing values" not in run.reported:
        run.reported.add("missing values")
        run.reports.note(
            f"the step function did not return {' and '.join(map(repr, missing))} in epoch "
            f"{run.session.epochs + 1}, as it did before: the row of that epoch has no such value"
        )
    return {name: value for name, value in means.items() if name not in missing}


def _without_partial(run: Run, means: dict[str, float]) -> dict[str, float]:
    """Leave out the values of only the batches before, or only those after a resume, and report them."""
    if not run.progress.sums_before:
        return means
    partial = partial_values(run.progress.sums_before, run.session.train_step.state_dict()["means"])
    if partial:
        run.reports.note(
            f"the step function returned {' and '.join(map(repr, partial))} for only a part of epoch "
            f"{run.session.epochs + 1}, because it changed before the run was resumed: the row of that epoch "
            "leaves out what does not cover all batches"
        )
    return {name: value for name, value in means.items() if name not in partial}


def partial_values(before: Sums, now: Sums) -> list[str]:
    """Return the values of all batches before a resume and of none after it, or the reverse.

    A value that some batches lack on both sides is left to the step function.

    >>> before = [(["loss", "acc"], [64.0, 40.0, 32.0])]
    >>> partial_values(before, [*before, (["loss", "accuracy"], [86.0, 50.0, 43.0])])
    ['acc', 'accuracy']
    >>> partial_values(before, [(["loss", "acc"], [150.0, 90.0, 75.0])])
    []
    """
    earlier, total = _weights(before), _weights(now)
    first, all_of_it = earlier.get("loss", 0.0), total.get("loss", 0.0)
    if not 0.0 < first < all_of_it:
        return []
    missing_after = [
        name for name, weight in earlier.items() if isclose(weight, first) and isclose(total[name], weight)
    ]
    missing_before = [
        name
        for name, weight in total.items()
        if not earlier.get(name, 0.0) and isclose(weight, all_of_it - first)
    ]
    return missing_after + missing_before


def _weights(sums: Sums) -> dict[str, float]:
    found: dict[str, Any] = {}
    for names, numbers in sums:
        for name in names:
            found[name] = found.get(name, 0.0) + numbers[0]
    return found
