"""The metrics of one graph: values come in at every step, a mean per epoch comes out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from flodl.core.errors import MetricError
from flodl.core.paths import suggestion

from .epochs import Rows
from .means import Mean, settle
from .trend import Trend, TrendGroup
from .values import Value, measure, weigh


class Book:
    """Collect values by name, close them into one weighted mean per epoch, and answer for the history.

    >>> book = Book()
    >>> for loss, size in [(0.5, 32), (0.3, 32), (0.1, 16)]:
    ...     book.record("loss", loss, weight=size)
    >>> book.end_epoch()
    >>> book.latest()
    {'loss': 0.34}

    Nothing waits for a device until a value is read: `record`, `flush` and `end_epoch` leave their
    numbers where they are, and the first question fetches all of them at once.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows = Rows(clock)
        self._step = 0
        self._history: dict[str, dict[int, Mean]] = {}
        self._pending: dict[str, Mean] = {}
        self._unread: list[Mean] = []

    @property
    def names(self) -> list[str]:
        """Every metric, in the order of its first value."""
        return list(self._history)

    @property
    def epoch(self) -> int:
        """The epoch that is open, counted from 0; set it to resume, or to keep books in step."""
        return self._rows.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._rows.epoch = epoch

    @property
    def step(self) -> int:
        """How often `end_step` was called."""
        return self._step

    @property
    def durations(self) -> dict[int, float]:
        """Seconds that each finished epoch took, by epoch."""
        return self._rows.durations

    def start(self) -> None:
        """Time the open epoch from now on rather than from the set-up; only the first call counts."""
        self._rows.start()

    def record(self, name: str, value: Value, *, weight: float | Tensor = 1.0) -> None:
        """Add a value, or each value of a sequence, to the mean of the open epoch."""
        if not isinstance(name, str) or not name:
            raise MetricError(f"a metric is named {name!r}. Name it by a string, for example 'loss'.")
        measured, factor = measure(name, value), weigh(name, weight)
        if not isinstance(factor, Tensor) and factor == 0.0:
            return
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = Mean()
            self._history.setdefault(name, {})
        for total, count in measured:
            pending.add(total, count=count, weight=factor)

    def flush(self, names: Sequence[str] = (), *, children: Sequence[Book] = ()) -> None:
        """Close the pending values of those names (all when empty) into the open epoch.

        A name that has a value there already begins a new epoch, so one flush per epoch is enough to
        number them, and two flushes with different names still share one. The `children` close
        everything they have, in the same epoch.

        >>> book = Book()
        >>> for loss in (3.0, 2.0, 1.0):
        ...     book.record("loss", loss)
        ...     book.flush()
        >>> book.history("loss")
        {0: 3.0, 1: 2.0, 2: 1.0}
        """
        chosen = self._chosen(names)
        closing = {book: list(book._pending) for book in children}
        closing[self] = [name for name in chosen if name in self._pending]
        if not any(closing.values()):
            return
        _meet(closing)
        while any(self.epoch in book._history[name] for book, ready in closing.items() for name in ready):
            for book in closing:
                book._rows.begin_next()
        for book, ready in closing.items():
            book._close(ready)
            book._rows.mark()

    def end_step(self) -> None:
        """Count one more step."""
        self._step += 1

    def end_epoch(self, *, children: Sequence[Book] = ()) -> None:
        """Merge everything pending into the open epoch, by weight, and go on to the next one."""
        books = dict.fromkeys((self, *children))
        _meet(books)
        first = self._rows.first_open
        for book in books:
            book._close(list(book._pending))
            book._join_rows(first)
            book._rows.end()

    def history(self, name: str) -> dict[int, float]:
        """Give the value of each epoch that has one, by epoch from 0; nothing for an unknown name."""
        self.settle()
        means = self._history.get(name, {})
        return {epoch: means[epoch].value for epoch in sorted(means)}

    def histories(self, names: Sequence[str] = ()) -> dict[str, dict[int, float]]:
        """Give the histories of those names, or of all that have one: what the exports take."""
        return {name: self.history(name) for name in self._chosen(names) if names or self._history[name]}

    def trend(self, name: str) -> Trend:
        """Give the trend of a metric, an empty one for an unknown name."""
        history = self.history(name)
        return Trend(list(history.values()), epochs=list(history), name=name)

    def trends(self, names: Sequence[str] = ()) -> TrendGroup:
        """Give the trends of those names, or of all, as a group."""
        return TrendGroup({name: self.trend(name) for name in self._chosen(names)})

    def latest(self) -> dict[str, float]:
        """Give the newest value of each metric that has one, in the order of `names`."""
        self.settle()
        return {name: means[max(means)].value for name, means in self._history.items() if means}

    def eta(self, total_epochs: int) -> float:
        """Estimate the seconds that remain, from the median of the last five epochs; 0.0 when unknown."""
        return self._rows.eta(total_epochs)

    def reset(self, names: Sequence[str] = ()) -> None:
        """Forget those metrics (all when empty) with their pending values; epoch and step stay."""
        for name in self._chosen(names):
            self._pending.pop(name, None)
            del self._history[name]
        self._unread = [mean for means in self._history.values() for mean in means.values()]

    def settle(self, *others: Book) -> None:
        """Fetch what this book and the others still hold on devices, with one transfer for each device."""
        books = [book for book in (self, *others) if book._unread]
        settle(tally for book in books for mean in book._unread for tally in mean.tallies)
        for book in books:
            book._unread = []

    def _chosen(self, names: Sequence[str]) -> list[str]:
        chosen = [names] if isinstance(names, str) else list(names) or self.names
        for name in chosen:
            if name not in self._history:
                hint = suggestion(str(name), self._history, known_as="metrics")
                raise MetricError(f"no metric {name!r} was recorded. {hint}")
        return chosen

    def _join_rows(self, first: int) -> None:
        """Merge what several flushes of one epoch put into rows of their own."""
        for means in self._history.values():
            for epoch in sorted(epoch for epoch in means if epoch > first):
                mean = means.setdefault(first, Mean())
                mean.absorb(means.pop(epoch))
                mean.fold()
                self._unread.append(mean)
        self._rows.go_back(first)

    def _close(self, names: Collection[str]) -> None:
        for name in names:
            mean = self._history[name].setdefault(self.epoch, Mean())
            mean.absorb(self._pending.pop(name))
            mean.fold()
            self._unread.append(mean)

    def state_dict(self) -> dict[str, Any]:
        """Give everything as plain data, ready for JSON; a row of the history is `[epoch, total, weight]`."""
        pending = {name: mean.copy() for name, mean in self._pending.items()}
        settle(tally for mean in (*self._unread, *pending.values()) for tally in mean.tallies)
        self._unread = []
        return {
            "history": {
                name: [[epoch, *_saved(mean)] for epoch, mean in sorted(means.items())]
                for name, means in self._history.items()
            },
            "pending": {name: _saved(mean) for name, mean in pending.items()},
            "step": self._step,
            **self._rows.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the book that `state_dict` was taken from."""
        try:
            history = {
                str(name): {int(epoch): _restored(total, weight) for epoch, total, weight in rows}
                for name, rows in state["history"].items()
            }
            pending = {str(name): _restored(*saved) for name, saved in state["pending"].items()}
            step, rows = int(state["step"]), Rows(self._clock)
            rows.load_state_dict(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MetricError(
                f"the saved metrics cannot be read: {type(error).__name__}: {error}. "
                "Give what Book.state_dict() returned."
            ) from error
        self._history, self._pending, self._step, self._rows = history, pending, step, rows
        self._unread = []

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.load_state_dict(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self)(clock=self._clock)
        twin.load_state_dict(self.state_dict())
        return twin

    def __repr__(self) -> str:
        return f"Book(epoch={self.epoch}, step={self.step}, names={self.names})"


def _meet(books: Collection[Book]) -> None:
    """Bring the books to the epoch of the one that is furthest, so that no epoch mixes old and new values."""
    epoch = max(book.epoch for book in books)
    for book in books:
        book.epoch = epoch


def _saved(mean: Mean) -> list[float | str]:
    # JSON has no NaN and no infinity; `float` reads their names back.
    return [
        number if math.isfinite(number) else str(number) for number in (mean.total.value, mean.weight.value)
    ]


def _restored(total: float | str, weight: float | str) -> Mean:
    return Mean(float(total), float(weight))
