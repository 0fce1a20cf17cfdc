"""Recording the metrics of one graph: values at every step, a weighted mean per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Self

from torch import Tensor

from flodl.core.errors import MetricError

from .epochs import EpochTimer
from .means import Mean, fetch
from .trend import Trend, TrendGroup, unknown_metric
from .values import Value, check_weight, measure


class Book:
    """Collect values by name, reduce them to one weighted mean per epoch, and keep the history.

    >>> book = Book()
    >>> for loss, size in [(0.5, 32), (0.3, 32), (0.1, 16)]:
    ...     book.record("loss", loss, weight=size)
    >>> book.end_epoch()
    >>> book.latest()
    {'loss': 0.34}

    Nothing synchronizes until a value is read: `record`, `flush` and `end_epoch` leave tensors on their
    device, and the first read fetches all of them at once.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timer = EpochTimer(clock)
        self._step = 0
        # The first epoch of the current run; trends and the remaining time begin there.
        self._run_start = 0
        self._num_records = 0
        self._history: dict[str, dict[int, Mean]] = {}
        self._pending: dict[str, Mean] = {}
        self._unread: list[Mean] = []
        self._origins: dict[str, str] = {}
        # When each metric was closed last; not saved, because the clock belongs to this process.
        self._closed_s: dict[str, float] = {}
        self._ended_by: Literal["itself", "parent"] | None = None

    @property
    def names(self) -> list[str]:
        """All metrics, ordered by their first value."""
        return list(self._history)

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0; set it to resume, or to synchronize several books."""
        return self._timer.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._timer.epoch = epoch
        self._run_start = min(self._run_start, epoch)

    @property
    def step(self) -> int:
        """The number of calls of `end_step`."""
        return self._step

    @property
    def num_records(self) -> int:
        """The number of calls of `record`; whether code records metrics can be seen from it."""
        return self._num_records

    @property
    def durations(self) -> dict[int, float]:
        """The duration of each finished epoch in seconds, by epoch."""
        return self._timer.durations

    def start(self) -> None:
        """Start timing the current epoch now instead of at construction; only the first call counts."""
        self._timer.start()

    def start_run(self) -> None:
        """Begin trends and the remaining time again; the history keeps the epochs before.

        >>> book = Book()
        >>> for loss in (0.5, 0.4):
        ...     book.start_run()
        ...     book.record("loss", loss)
        ...     book.end_epoch()
        >>> book.trend("loss").values, book.history("loss")
        ([0.4], {0: 0.5, 1: 0.4})
        """
        self._run_start = self.epoch

    def record(
        self, name: str, value: Value, *, weight: float | Tensor = 1.0, origin: str = "record"
    ) -> None:
        """Add a value, or each value of a sequence, to the mean of the current epoch.

        `origin` says what the values are. Values of different origin have no common mean, so they need
        different names.
        """
        if not isinstance(name, str) or not name:
            raise MetricError(f"the metric name is {name!r}. Expected a non-empty string such as 'loss'.")
        if self._origins.setdefault(name, origin) != origin:
            raise _two_origins(name, self._origins[name], origin)
        measured, factor = measure(name, value), check_weight(name, weight)
        self._num_records += 1
        self._history.setdefault(name, {})
        if not isinstance(factor, Tensor) and factor == 0.0:
            return
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = Mean()
        for total, count in measured:
            pending.add(total, count=count, weight=factor)

    def flush(self, names: Sequence[str] = (), *, children: Sequence[Book] = ()) -> None:
        """Reduce the pending values of these names (all if empty) to a mean for the current epoch.

        If a name already has a value in that epoch, a new epoch starts. So one flush per epoch is enough to
        number the epochs, and two flushes with different names share one. The `children` reduce all their
        pending values, in the same epoch.

        >>> book = Book()
        >>> for loss in (3.0, 2.0, 1.0):
        ...     book.record("loss", loss)
        ...     book.flush()
        >>> book.history("loss")
        {0: 3.0, 1: 2.0, 2: 1.0}
        """
        selected = self._select(names)
        closing = {book: list(book._pending) for book in children}
        closing[self] = [name for name in selected if name in self._pending]
        if not any(closing.values()):
            return
        _align_epochs(closing)
        while any(self.epoch in book._history[name] for book, ready in closing.items() for name in ready):
            for book in closing:
                book._timer.start_next()
        for book, ready in closing.items():
            book._close(ready)
            book._timer.mark()

    def end_step(self) -> None:
        """Count one more step."""
        self._step += 1

    def end_epoch(self, *, children: Sequence[Book] = ()) -> None:
        """Reduce all pending values to means for the current epoch, and start the next one.

        An epoch ends once: after the end of a parent's epoch, the same call on a child does nothing, and a
        child that ended the epoch itself is left out of the parent's.
        """
        if self._ended_by == "parent" and self._has_nothing_new:
            self._ended_by = None
            return
        books = [book for book in dict.fromkeys((self, *children)) if not book._ended_before(self)]
        _align_epochs(books)
        first = self._timer.first_unended
        for book in books:
            book._close(list(book._pending))
            book._merge_epochs(first)
            book._timer.end()
            book._ended_by = "itself" if book is self else "parent"
        for book in {*children} - {*books}:
            book._ended_by = None

    def add_to_last_epoch(self) -> None:
        """Add the pending values to the epoch that ended last."""
        for name in list(self._pending):
            self._close_into(max(self.epoch - 1, 0), name)

    @property
    def pending_names(self) -> list[str]:
        """The metrics with values that belong to no finished epoch yet."""
        return list(self._pending)

    @property
    def _has_nothing_new(self) -> bool:
        """Whether nothing was recorded since the last epoch ended."""
        return not self._pending and self._timer.is_untouched

    def _ended_before(self, parent: Book) -> bool:
        """Return whether this book has already ended the parent's current epoch."""
        return (
            self._ended_by is not None
            and self is not parent
            and self._has_nothing_new
            and self.epoch == parent.epoch + 1
            and self._timer.start_s >= parent._timer.start_s
        )

    def history(self, name: str) -> dict[int, float]:
        """Return the values by epoch, counted from 0; once there are metrics, an unknown name raises."""
        if self._history and name not in self._history:
            raise unknown_metric(str(name), self._history)
        self.fetch()
        means = self._history.get(name, {})
        return {epoch: means[epoch].value for epoch in sorted(means)}

    def histories(self, names: Sequence[str] = ()) -> dict[str, dict[int, float]]:
        """Return the histories of these names, or of all metrics that have one, for the exports."""
        return {name: self.history(name) for name in self._select(names) if names or self._history[name]}

    def trend(self, name: str) -> Trend:
        """Return the trend of a metric in this run; once there are metrics, an unknown name raises.

        >>> book = Book()
        >>> book.trend("train_loss").latest
        nan
        >>> book.record("loss", 0.5)
        >>> book.trend("train_loss")
        Traceback (most recent call last):
        flodl.core.errors.MetricError: no metric 'train_loss' was recorded. Did you mean 'loss'?
        """
        history = {epoch: value for epoch, value in self.history(name).items() if epoch >= self._run_start}
        closed_s = self._closed_s.get(name)
        return Trend(list(history.values()), epochs=list(history), name=name, closed_s=closed_s)

    def has_pending_only(self, name: str) -> bool:
        """Return whether a metric has recorded values, but none of a finished epoch."""
        return name in self._pending and not self._history[name]

    def trends(self, names: Sequence[str] = ()) -> TrendGroup:
        """Return the trends of these names, or of all, as a group."""
        return TrendGroup({name: self.trend(name) for name in self._select(names)})

    def latest(self) -> dict[str, float]:
        """Return the latest value of each metric that has one, in the order of `names`."""
        self.fetch()
        return {name: means[max(means)].value for name, means in self._history.items() if means}

    def eta(self, total_epochs: int) -> float:
        """Estimate the remaining seconds from the median of the last five epochs; NaN if unknown."""
        return self._timer.eta(total_epochs, first=self._run_start)

    def reset(self, names: Sequence[str] = ()) -> None:
        """Delete these metrics (all if empty) and their pending values; epoch and step stay."""
        for name in self._select(names):
            self._pending.pop(name, None)
            self._origins.pop(name, None)
            self._closed_s.pop(name, None)
            del self._history[name]
        self._unread = [mean for means in self._history.values() for mean in means.values()]

    def fetch(self, *others: Book) -> None:
        """Fetch the values of these books that are still on devices, with one transfer per device."""
        books = [book for book in (self, *others) if book._unread]
        fetch(running for book in books for mean in book._unread for running in mean.sums)
        for book in books:
            book._unread = []

    def _select(self, names: Sequence[str]) -> list[str]:
        selected = [names] if isinstance(names, str) else list(names) or self.names
        for name in selected:
            if name not in self._history:
                raise unknown_metric(str(name), self._history)
        return selected

    def _merge_epochs(self, first: int) -> None:
        """Merge the epochs from `first` on, which several flushes within one epoch created."""
        for means in self._history.values():
            for epoch in sorted(epoch for epoch in means if epoch > first):
                mean = means.setdefault(first, Mean())
                mean.absorb(means.pop(epoch))
                mean.fold()
                self._unread.append(mean)
        self._timer.merge(first)
        self._run_start = min(self._run_start, first)

    def _close(self, names: Collection[str]) -> None:
        for name in names:
            self._close_into(self.epoch, name)

    def _close_into(self, epoch: int, name: str) -> None:
        mean = self._history[name].setdefault(epoch, Mean())
        mean.absorb(self._pending.pop(name))
        mean.fold()
        self._unread.append(mean)
        self._closed_s[name] = self._clock()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-compatible data; an entry of the history is `[epoch, total, weight]`."""
        pending = {name: mean.copy() for name, mean in self._pending.items()}
        fetch(running for mean in (*self._unread, *pending.values()) for running in mean.sums)
        self._unread = []
        return {
            "history": {
                name: [[epoch, *_saved(mean)] for epoch, mean in sorted(means.items())]
                for name, means in self._history.items()
            },
            "pending": {name: _saved(mean) for name, mean in pending.items()},
            "step": self._step,
            **({"run_start": self._run_start} if self._run_start else {}),
            **self._timer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        try:
            history = {
                str(name): {int(epoch): _restored(total, weight) for epoch, total, weight in rows}
                for name, rows in state["history"].items()
            }
            pending = {str(name): _restored(*saved) for name, saved in state["pending"].items()}
            step, timer = int(state["step"]), EpochTimer(self._clock)
            run_start = int(state.get("run_start", 0))
            timer.load_state_dict(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise MetricError(
                f"the saved metrics cannot be read: {type(error).__name__}: {error}. "
                "Load the result of Book.state_dict()."
            ) from error
        self._history, self._pending, self._step, self._timer = history, pending, step, timer
        self._unread, self._origins, self._closed_s, self._ended_by = [], {}, {}, None
        self._run_start = run_start

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.load_state_dict(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self)(clock=self._clock)
        copied.load_state_dict(self.state_dict())
        return copied

    def __repr__(self) -> str:
        return f"Book(epoch={self.epoch}, step={self.step}, names={self.names})"


def _align_epochs(books: Collection[Book]) -> None:
    """Set all books to the latest of their epochs, so that no epoch mixes old and new values."""
    epoch = max(book.epoch for book in books)
    for book in books:
        book.epoch = epoch


def _two_origins(name: str, first: str, second: str) -> MetricError:
    return MetricError(
        f"the metric {name!r} has values from {first}, and now from {second}: their mean would mix both. "
        f"Record one of them under a different name, for example record('{name}_2', value)."
    )


def _saved(mean: Mean) -> list[float | str]:
    # JSON has neither NaN nor infinity; `float` parses their names.
    return [
        number if math.isfinite(number) else str(number) for number in (mean.total.value, mean.weight.value)
    ]


def _restored(total: float | str, weight: float | str) -> Mean:
    return Mean(float(total), float(weight))
