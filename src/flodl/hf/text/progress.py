"""A progress bar for predictions and tokenization that take a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from flodl.core import Verbosity, verbosity

# A list that is done sooner needs no bar.
_DELAY_S = 1.0


@contextmanager
def progress_bar(
    total: int,
    *,
    show: bool | None = None,
    title: str = "predict",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """Return a function that counts finished texts.

    The bar appears after a second, on a terminal only; `show` turns it on or off regardless.
    """
    stream = sys.stderr if stream is None else stream
    if show is None:
        show = stream.isatty() and verbosity() >= Verbosity.NORMAL
        delay_s = _DELAY_S
    else:
        delay_s = 0.0
    if not show:
        yield lambda count: None
        return
    bar = _Bar(total, stream, title, start_s=clock() + delay_s, clock=clock)
    try:
        yield bar.advance
    finally:
        bar.close()


class _Bar:
    """A bar of rich that is created when it is first drawn."""

    def __init__(
        self, total: int, stream: TextIO, title: str, *, start_s: float, clock: Callable[[], float]
    ) -> None:
        self._total = total
        self._stream = stream
        self._title = title
        self._start_s = start_s
        self._clock = clock
        self._done = 0
        self._close: Callable[[], None] | None = None
        self._update: Callable[[int], None] | None = None

    def advance(self, count: int) -> None:
        """Count finished texts, and draw the bar when it is time."""
        self._done += count
        if self._update is None and self._clock() >= self._start_s:
            self._open()
        if self._update is not None:
            self._update(self._done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(self._title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=Console(file=self._stream, force_terminal=True), transient=True)
        task = progress.add_task(self._title, total=self._total)
        progress.start()
        self._close = progress.stop
        self._update = lambda done: progress.update(task, completed=done)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._close is not None:
            self._close()
