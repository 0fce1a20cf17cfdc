"""A progress bar on the last line of a terminal; other output is printed above it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from flodl.core import environment

from .lines import Line

if TYPE_CHECKING:
    from rich.text import Text

_REFRESH_S = 0.1
_BAR_WIDTH = 24
# In a narrow terminal, the numbers matter more than the bar.
_MIN_BAR_WIDTH = 8
_MIN_METRICS_WIDTH = 20
# A metric that is truncated to fewer characters is useless.
_MIN_TRUNCATED_WIDTH = 6


class Bar:
    """Draw progress at most ten times per second; `print` writes a permanent line above."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._drawn_s = -_REFRESH_S
        self._console = Console(
            file=stream,
            highlight=False,
            markup=False,
            emoji=False,
            no_color=environment.color_disabled() or None,
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = False

    @property
    def is_usable(self) -> bool:
        """Whether the terminal can rewrite a line."""
        return not self._console.is_dumb_terminal and self._console.encoding.startswith("utf")

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed to draw again; check this first, because drawing is expensive."""
        return self._clock() - self._drawn_s >= _REFRESH_S

    def draw(self, name: str, fraction: float | None, *, steps: str, metrics: str, eta: str) -> None:
        """Show the progress of the epoch."""
        self._drawn_s = self._clock()
        if not self._shown:
            self._shown = True
            self._live.start()
            # Keep the cursor visible: a killed run must not leave a terminal without one.
            self._console.show_cursor(True)
        self._live.update(_row(name, fraction, steps, metrics, eta, width=self._console.width), refresh=True)

    def clear(self) -> None:
        """Clear the line until it is drawn again."""
        from rich.console import Group

        self._drawn_s = -_REFRESH_S
        if self._shown:
            self._live.update(Group(), refresh=True)

    def print(self, line: Line) -> None:
        """Write a permanent line."""
        from rich.text import Text

        self._console.print(Text.assemble(*line), soft_wrap=True)

    def hide(self) -> None:
        """Remove the bar and restore the standard streams."""
        if self._shown:
            self._shown = False
            self._live.stop()


def _row(name: str, fraction: float | None, steps: str, metrics: str, eta: str, *, width: int) -> Text:
    """Lay out the line: if space is short, drop the bar first, then metrics and steps; keep the ETA."""
    from rich.text import Text

    rest = width - 1 - len(f"  {name}  ") - (len(eta) + 2 if eta else 0)
    if fraction is not None and len(steps) > rest:
        steps = f"{100 * fraction:.0f}%"
    rest -= len(steps)
    room = rest - min(len(metrics), _MIN_METRICS_WIDTH) - 4
    bar = 0 if fraction is None or room < _MIN_BAR_WIDTH else min(room, _BAR_WIDTH)
    row = Text(f"  {name}  ", style="bold", no_wrap=True, overflow="ellipsis")
    if bar and fraction is not None:
        full = round(fraction * bar)
        row.append("━" * full, "not bold cyan")
        row.append("─" * (bar - full) + "  ", "not bold bright_black")
        rest -= bar + 2
    values = Text(metrics if rest - 2 >= _MIN_TRUNCATED_WIDTH else "")
    values.truncate(max(rest - 2, 0), overflow="ellipsis")
    return row.append("  ".join(note for note in (steps, values.plain, eta) if note), "not bold")
