"""Statistics of a series of values: latest, mean, slope, whether it improves, stalls or converges."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flodl.core.errors import MetricError
from flodl.core.formats import a_type, format_metric
from flodl.core.integers import is_number
from flodl.core.paths import suggestion
from flodl.core.usage.calls import MetricCallError, explain_creation, explain_methods

_ELSEWHERE = {
    **dict.fromkeys(("patience", "window", "last", "epochs", "num_epochs", "k"), "Write n=…."),
    **dict.fromkeys(("min_delta", "threshold", "tolerance", "eps", "delta", "atol"), "Write tol=…."),
    "rtol": "Write tol=…, relative=True.",
    **dict.fromkeys(("minimize", "maximize"), "Write mode='min' or mode='max'."),
}
_EXAMPLES = {
    name: f"Write {name}(5), for the last 5 values."
    for question in ("stalled", "improving", "converged")
    for name in (question, f"all_{question}", f"any_{question}")
} | {"last": "Write last(5)."}


@explain_creation(MetricCallError, example="Write Trend([0.5, 0.25], name='loss').")
@explain_methods(MetricCallError, elsewhere=_ELSEWHERE, examples=_EXAMPLES)
class Trend:
    """The history of one metric, with statistics of its last `n` values (all of them for `n=0`).

    >>> loss = Trend([10, 8, 6, 4, 2], name="loss")
    >>> loss.latest, loss.mean, loss.slope()
    (2.0, 6.0, -2.0)
    >>> loss.improving(5), loss.stalled(5)
    (True, False)

    Every answer is False until there are `n` values, so that training does not stop too early, and every
    number of an empty trend is NaN, so that no comparison with it is true:

    >>> loss.improving(6), Trend([]).stalled(5), Trend([]).latest < 0.1
    (False, False, False)
    """

    def __init__(
        self,
        values: Sequence[float],
        *,
        epochs: Sequence[int] | None = None,
        name: str = "",
        closed_s: float | None = None,
    ) -> None:
        self._values = _numbers(values, name)
        self._epochs = list(range(len(self._values))) if epochs is None else _indices(epochs, name)
        self.name = name
        # When the latest value was closed, as time.monotonic counts it; None if an earlier process did.
        self.closed_s = closed_s
        if closed_s is not None and not is_number(closed_s):
            raise MetricError(
                f"closed_s={closed_s!r:.60}. Pass a time, as time.monotonic() returns it, or None."
            )
        if len(self._epochs) != len(self._values):
            raise MetricError(
                f"the trend {name!r} has {len(self._values)} values but {len(self._epochs)} epochs. "
                "Pass one epoch for each value, or leave the epochs out."
            )
        if any(later <= earlier for earlier, later in itertools.pairwise(self._epochs)):
            raise MetricError(
                f"the trend {name!r} got epochs that do not increase: {self._epochs!r:.80}. "
                "Pass the values in the order of their epochs, one value for each."
            )

    @property
    def values(self) -> list[float]:
        """The values, oldest first; epochs without a value are skipped."""
        return list(self._values)

    @property
    def epochs(self) -> list[int]:
        """The epoch of each value, counted from 0."""
        return list(self._epochs)

    @property
    def latest(self) -> float:
        """The latest value, NaN if there is none."""
        return self._values[-1] if self._values else math.nan

    @property
    def mean(self) -> float:
        """The mean, NaN if there is no value."""
        return _mean(self._values)

    @property
    def min(self) -> float:
        """The smallest value that is not NaN; NaN if there is none."""
        return min(_without_nan(self._values), default=math.nan)

    @property
    def max(self) -> float:
        """The largest value that is not NaN; NaN if there is none."""
        return max(_without_nan(self._values), default=math.nan)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __lt__(self, other: object) -> bool:
        raise self._not_a_number("<", other)

    def __gt__(self, other: object) -> bool:
        raise self._not_a_number(">", other)

    def __le__(self, other: object) -> bool:
        raise self._not_a_number("<=", other)

    def __ge__(self, other: object) -> bool:
        raise self._not_a_number(">=", other)

    def _not_a_number(self, sign: str, other: object) -> MetricError:
        return MetricError(
            f"{self!r} {sign} {other!r:.60}: a trend is a history, not a number. Compare its latest value: "
            f"trend.latest {sign} {other!r:.60}."
        )

    def __repr__(self) -> str:
        shown = ", ".join(format_metric(value) for value in self.last(4))
        dots = "…, " if len(self) > 4 else ""
        return f"Trend({self.name!r}, {len(self)} values: [{dots}{shown}])"

    def last(self, n: int) -> list[float]:
        """Return the last `n` values, oldest first; all of them if there are fewer."""
        count = _count(n, "last")
        return self._values[-count:] if count else []

    def slope(self, n: int = 0) -> float:
        """Fit a line through the last `n` values (all for 0) and return its slope per epoch.

        Fewer than two values have no slope: it is NaN.

        >>> Trend([1, 5, 10, 8, 6]).slope() > 0, Trend([1, 5, 10, 8, 6]).slope(3)
        (True, -2.0)
        >>> Trend([0, 10, 20], epochs=[0, 5, 10]).slope()
        2.0
        """
        count = _count(n, "slope")
        return self._slope(self._values[-count:] if count else self._values)

    def stalled(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether the last `n` values neither rise nor fall: the slope is within ±`tol`.

        `relative=True` divides the values by their mean magnitude first, so that one tolerance works for
        a loss of 0.01 and one of 1000.

        >>> large = Trend([1000, 999, 1000, 999])
        >>> large.stalled(4, 1e-2), large.stalled(4, 1e-2, relative=True)
        (False, True)
        """
        window, bound = self._window(n, "stalled"), _tolerance(tol, "stalled")
        return window is not None and abs(self._slope(_scaled(window, relative))) <= bound

    def improving(self, n: int, mode: str = "min") -> bool:
        """Return whether the last `n` values fall (`mode="min"`) or rise (`mode="max"`)."""
        if mode not in ("min", "max"):
            raise MetricError(
                f"improving got mode={mode!r}. Use 'min' if lower is better, as for a loss, "
                "or 'max' if higher is better, as for an accuracy."
            )
        window = self._window(n, "improving")
        if window is None:
            return False
        slope = self._slope(window)
        return slope < 0 if mode == "min" else slope > 0

    def converged(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether the last `n` values are close together: their population variance is below `tol`.

        >>> calm = Trend([5, 5.01, 4.99, 5, 5.01])
        >>> calm.converged(5, 1e-3), calm.converged(5, 1e-5)
        (True, False)
        """
        window, bound = self._window(n, "converged"), _tolerance(tol, "converged")
        return window is not None and _variance(_scaled(window, relative)) < bound

    def _slope(self, window: Sequence[float]) -> float:
        """Return the slope per epoch of values that belong to the last epochs."""
        return _slope(self._epochs[len(self._epochs) - len(window) :], window)

    def _window(self, n: int, question: str) -> list[float] | None:
        """Return the last `n` values, or None if there are fewer."""
        count = _count(n, question)
        if count == 1:
            raise MetricError(
                f"{question} got n=1, but one value has neither a slope nor a variance. Use n of at least 2."
            )
        needed = count or 2
        return None if len(self) < needed else self._values[-count:] if count else self._values


@explain_creation(MetricCallError, example="Write TrendGroup({'loss': trend}).")
@explain_methods(MetricCallError, elsewhere=_ELSEWHERE, examples=_EXAMPLES)
class TrendGroup(Mapping[str, Trend]):
    """Several trends queried at once; every answer of an empty group is False.

    >>> heads = TrendGroup({"head_0": Trend([3, 2, 1]), "head_1": Trend([1, 2, 3])})
    >>> heads.all_improving(3), heads.any_improving(3), heads.slopes(3)
    (False, True, {'head_0': -1.0, 'head_1': 1.0})
    >>> heads["head_0"].latest
    1.0
    """

    def __init__(self, trends: Mapping[str, Trend]) -> None:
        if not isinstance(trends, Mapping):
            raise MetricError(
                f"TrendGroup got {a_type(trends)}. Pass a dict of trends by name: "
                "TrendGroup({'loss': trend})."
            )
        self._trends = dict(trends)

    def __getitem__(self, name: str) -> Trend:
        if name not in self._trends:
            raise KeyError(f"no trend {name!r}. {suggestion(str(name), self._trends, known_as='trends')}")
        return self._trends[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trends)

    def __len__(self) -> int:
        return len(self._trends)

    def __repr__(self) -> str:
        return f"TrendGroup({', '.join(repr(trend) for trend in self._trends.values())})"

    @property
    def names(self) -> list[str]:
        """The names in the group, in order."""
        return list(self._trends)

    def all_improving(self, n: int, mode: str = "min") -> bool:
        """Return whether every trend is improving."""
        return self._all(lambda trend: trend.improving(n, mode))

    def any_improving(self, n: int, mode: str = "min") -> bool:
        """Return whether at least one trend is improving."""
        return self._any(lambda trend: trend.improving(n, mode))

    def all_stalled(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether every trend has stalled."""
        return self._all(lambda trend: trend.stalled(n, tol, relative=relative))

    def any_stalled(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether at least one trend has stalled."""
        return self._any(lambda trend: trend.stalled(n, tol, relative=relative))

    def all_converged(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether every trend has converged."""
        return self._all(lambda trend: trend.converged(n, tol, relative=relative))

    def any_converged(self, n: int, tol: float = 1e-4, *, relative: bool = False) -> bool:
        """Return whether at least one trend has converged."""
        return self._any(lambda trend: trend.converged(n, tol, relative=relative))

    def slopes(self, n: int = 0) -> dict[str, float]:
        """Return the slope of each trend over its last `n` values."""
        return {name: trend.slope(n) for name, trend in self._trends.items()}

    def mean_slope(self, n: int = 0) -> float:
        """Return the mean of the slopes; NaN for an empty group, or if a trend has no slope."""
        return _mean(list(self.slopes(n).values()))

    def _all(self, question: Callable[[Trend], bool]) -> bool:
        return bool(self._trends) and all(question(trend) for trend in self._trends.values())

    def _any(self, question: Callable[[Trend], bool]) -> bool:
        return any(question(trend) for trend in self._trends.values())


def unknown_metric(name: str, known: Iterable[str]) -> MetricError:
    """Return the error for a metric that was never recorded, with the most similar names.

    >>> raise unknown_metric("train_loss", ["loss", "accuracy"])
    Traceback (most recent call last):
    flodl.core.errors.MetricError: no metric 'train_loss' was recorded. Did you mean 'loss'?
    """
    return MetricError(f"no metric {name!r} was recorded. {suggestion(name, known, known_as='metrics')}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _without_nan(values: Sequence[float]) -> Iterator[float]:
    return (value for value in values if not math.isnan(value))


def _numbers(values: Any, name: str) -> list[float]:
    if not isinstance(values, str | Mapping | set | frozenset):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return [float(value) for value in values]
    raise MetricError(
        f"the trend {name!r} got {values!r:.60}. Pass a list of numbers, one for each epoch; "
        "model.trend('loss') returns the trend of a metric."
    )


def _indices(epochs: Any, name: str) -> list[int]:
    with contextlib.suppress(TypeError):
        return [operator.index(epoch) for epoch in epochs]
    raise MetricError(
        f"the trend {name!r} got epochs={epochs!r:.60}. Pass a list of integers, one for each value."
    )


def _slope(epochs: Sequence[int], values: Sequence[float]) -> float:
    # Least squares with x and y centered first, which stays precise when the values are large and nearly
    # equal, unlike (nΣxy − ΣxΣy) / (nΣx² − (Σx)²).
    if len(values) < 2:
        return math.nan
    since = [epoch - epochs[0] for epoch in epochs]
    x_mean, y_mean = _mean(since), _mean(values)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(since, values))
    return covariance / sum((x - x_mean) ** 2 for x in since)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return _mean([(value - mean) * (value - mean) for value in values])


def _scaled(values: Sequence[float], relative: bool) -> Sequence[float]:
    magnitude = _mean([abs(value) for value in values]) if relative else 0.0
    return [value / magnitude for value in values] if magnitude else values


def _count(n: int, question: str) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        count = -1
    if count < 0 or isinstance(n, bool):
        raise MetricError(f"{question} got n={n!r}. Expected an integer of at least 0.")
    return count


def _tolerance(tol: Any, question: str) -> float:
    if not is_number(tol) or not tol >= 0:
        raise MetricError(f"{question} got tol={tol!r}. Expected a small positive number.")
    return tol  # type: ignore[no-any-return]
