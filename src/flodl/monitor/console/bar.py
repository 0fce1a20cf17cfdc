"""The line that rewrites itself, on a terminal: a bar, and whatever is printed goes above it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from flodl.core import environment

from .lines import Line

if TYPE_CHECKING:
    from rich.text import Text

_REFRESH_S = 0.1
_BAR_WIDTH = 24
# On a narrower terminal the numbers matter more than the bar.
_LEAST_WIDTH = 70


class Bar:
    """Draw progress at most ten times a second; `print` writes a lasting line above."""

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
            no_color=environment.colour_refused() or None,
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = False

    @property
    def is_usable(self) -> bool:
        """Whether the terminal can rewrite a line at all."""
        return not self._console.is_dumb_terminal and self._console.encoding.startswith("utf")

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed to draw again: asking is cheap, drawing is not."""
        return self._clock() - self._drawn_s >= _REFRESH_S

    def draw(self, name: str, fraction: float | None, notes: Sequence[str]) -> None:
        """Show where the epoch stands."""
        self._drawn_s = self._clock()
        if not self._shown:
            self._shown = True
            self._live.start()
            # The cursor stays visible: a killed run must not leave a terminal without one.
            self._console.show_cursor(True)
        self._live.update(_row(name, fraction, notes, width=self._console.width), refresh=True)

    def clear(self) -> None:
        """Empty the line until it is drawn again."""
        from rich.console import Group

        self._drawn_s = -_REFRESH_S
        self._live.update(Group())

    def print(self, line: Line) -> None:
        """Write a line that stays."""
        from rich.text import Text

        self._console.print(Text.assemble(*line), soft_wrap=True)

    def hide(self) -> None:
        """Take the bar off the screen and give the standard streams back."""
        if self._shown:
            self._shown = False
            self._live.stop()


def _row(name: str, fraction: float | None, notes: Sequence[str], *, width: int) -> Text:
    from rich.text import Text

    row = Text(f"  {name}  ", style="bold", no_wrap=True, overflow="ellipsis")
    if fraction is not None and width >= _LEAST_WIDTH:
        full = round(fraction * _BAR_WIDTH)
        row.append("━" * full, "not bold cyan")
        row.append("─" * (_BAR_WIDTH - full) + "  ", "not bold bright_black")
    return row.append("  ".join(notes), "not bold")
