"""Retention policies: which saves to keep, as a pure function of their steps and metrics.

>>> from pathlib import Path
>>> saves = [Bundle(Path(f"{step}"), step, {"loss": loss}) for step, loss in enumerate([3.0, 1.0, 2.0, 4.0])]
>>> kept, dropped = keep(saves, last(1) | best("loss", 1))
>>> [save.step for save in kept], [save.step for save in dropped]
([1, 3], [0, 2])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from flodl.core import CheckpointError
from flodl.core.best_values import best_position
from flodl.core.integers import as_integer, is_integer
from flodl.core.metric_modes import Mode, guess_note, mode_of_metric
from flodl.core.paths import suggestion
from flodl.core.usage.calls import CheckpointCallError, explain_calls

from ..files.keywords import suggest_keywords
from .manifest import Bundle

# What others call the arguments of `best`.
_ELSEWHERE = {
    "monitor": "The metric comes first: best('eval_loss').",
    **dict.fromkeys(("k", "save_top_k", "top_k", "count"), "Write best('eval_loss', 3) for the three best."),
}


@dataclass(frozen=True)
class Policy:
    """Selects the saves to keep; `|` keeps the saves that either of two policies keeps."""

    text: str
    choose: Callable[[Sequence[Bundle]], Sequence[Bundle]]
    # The metrics that `choose` reads.
    metrics: tuple[str, ...] = ()
    # The maximum number of saves it keeps; None for no limit.
    most: int | None = None
    # Directions of metrics that were guessed, for the report of a run.
    notes: tuple[str, ...] = ()
    # For each of `metrics`, whether lower or higher is better.
    modes: tuple[Mode, ...] = ()
    # The same policy for known directions, where the name of a metric decided.
    _decided: Callable[[Mapping[str, Mode]], Policy] | None = None

    def with_modes(self, modes: Mapping[str, Mode]) -> Policy:
        """Return the policy with the directions of some metrics, where the policy was created without one.

        >>> str(best("eval_size").with_modes({"eval_size": "max"}))
        "best('eval_size', 1, mode='max')"
        """
        return self if self._decided is None else self._decided(modes)

    def __or__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            raise CheckpointError(
                f"{self} | {other!r}. Use a policy on both sides, such as last(3) | best('loss')."
            )
        return Policy(
            f"{self} | {other}",
            lambda saves: [*self.choose(saves), *other.choose(saves)],
            (*self.metrics, *other.metrics),
            None if self.most is None or other.most is None else self.most + other.most,
            (*self.notes, *other.notes),
            (*self.modes, *other.modes),
            lambda modes: self.with_modes(modes) | other.with_modes(modes),
        )

    def __bool__(self) -> bool:
        # `a or b` and `a and b` would return one of the two, and the saves of the other would be deleted.
        raise CheckpointError(
            f"{self} is used as a condition, as in `last(1) or best('loss')`, which Python evaluates to one "
            "of the two. Use | to keep the saves of both: last(1) | best('loss'). To test for None, write "
            "`policy is not None`."
        )

    def __and__(self, other: object) -> NoReturn:
        raise self._not_combined("&", other)

    def __add__(self, other: object) -> NoReturn:
        raise self._not_combined("+", other)

    def _not_combined(self, sign: str, other: object) -> CheckpointError:
        return CheckpointError(f"{self} {sign} {other}. Use | to keep the saves of both: {self} | {other}.")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


@explain_calls(CheckpointCallError, example="Write last(3).")
def last(n: int) -> Policy:
    """Keep the newest saves."""
    n = _count(n, "last")
    return Policy(f"last({n})", lambda saves: saves[-n:], most=n)


@explain_calls(CheckpointCallError, elsewhere=_ELSEWHERE, example="Write best('eval_loss').")
def best(metric: str, n: int = 1, *, mode: Mode | None = None) -> Policy:
    """Keep the saves with the best values of a metric, the first of equal ones; NaN never counts.

    Values that differ by less than a millionth of their size are equal, as for `FitResult.best`. With
    mode="max", higher is better. By default that holds for a name such as "eval_accuracy" or "f1".

    >>> str(best("eval_loss")), str(best("eval_accuracy", 3))
    ("best('eval_loss', 1, mode='min')", "best('eval_accuracy', 3, mode='max')")
    """
    n = _count(n, "best")
    if not isinstance(metric, str):
        raise CheckpointError(f"best({metric!r}): pass the name of a metric first, such as best('loss', 3).")
    note = guess_note(f"best({metric!r})", metric, mode)
    is_given = mode is not None
    mode = mode_of_metric(metric) if mode is None else mode
    if mode not in ("min", "max"):
        raise CheckpointError(f"best: mode={mode!r}. Use 'min' or 'max'.")

    def choose(saves: Sequence[Bundle]) -> Sequence[Bundle]:
        left = sorted(saves, key=lambda save: save.step)
        chosen: list[Bundle] = []
        while len(chosen) < n:
            position = best_position((save.metrics.get(metric, math.nan) for save in left), mode)
            if position is None:
                break
            chosen.append(left.pop(position))
        return chosen

    return Policy(
        f"best({metric!r}, {n}, mode={mode!r})",
        choose,
        (metric,),
        most=n,
        notes=(note,) if note else (),
        modes=(mode,),
        _decided=None if is_given else lambda modes: best(metric, n, mode=modes.get(metric)),
    )


@explain_calls(CheckpointCallError, example="Write every(1000).")
def every(k: int) -> Policy:
    """Keep the saves whose step is a multiple of `k`."""
    k = _count(k, "every")
    return Policy(f"every({k})", lambda saves: [save for save in saves if save.step % k == 0])


@suggest_keywords
def keep(bundles: Sequence[Bundle], policy: Policy) -> tuple[list[Bundle], list[Bundle]]:
    """Return the saves to keep and the saves to drop, both sorted by step; the newest is always kept.

    A policy with a metric that no save has raises an error: it would drop the best saves, too.
    """
    known = sorted({name for save in bundles for name in save.metrics})
    for metric in policy.metrics:
        if bundles and metric not in known:
            hint = suggestion(metric, known, known_as="metrics")
            raise CheckpointError(
                f"{policy} needs the metric {metric!r}, which none of {len(bundles)} saves has. {hint} "
                "Nothing was deleted."
            )
    return apply_policy(bundles, policy)


def apply_policy(bundles: Sequence[Bundle], policy: Policy) -> tuple[list[Bundle], list[Bundle]]:
    """Do the same as `keep`, but accept saves without the metric, as in the first epoch of a run."""
    saves = sorted(bundles, key=lambda save: save.step)
    chosen = {id(save) for save in [*policy.choose(saves), *saves[-1:]]}
    return (
        [save for save in saves if id(save) in chosen],
        [save for save in saves if id(save) not in chosen],
    )


def _count(count: object, name: str) -> int:
    """Return a number of saves as an int, or raise."""
    number = as_integer(count)
    if not is_integer(number, at_least=1):
        raise CheckpointError(f"{name}({count!r}): pass an integer >= 1.")
    return int(number)
