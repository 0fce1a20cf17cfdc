"""The second half of a loop or a map: how often, and over what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl.core import BuildError, LoopError, RefError
from flodl.core.paths import suggestion

from ..control import Loop
from ..control.loop import Asked
from ..control.map import MapMode
from .draft import Draft, Target, Unfinished, checked

if TYPE_CHECKING:
    from .builder import FlowBuilder


class LoopBuilder(Unfinished):
    """A loop that still needs its end."""

    def __init__(self, flow: FlowBuilder, body: Target, stream: Draft) -> None:
        self._flow, self._body, self._stream = flow, body, stream

    def for_n(self, n: int) -> FlowBuilder:
        """Run the body exactly `n` times."""
        self._flow._end(self)
        return self._close(Loop(self._body, turns=_turns(n, "for_n")))

    def while_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> FlowBuilder:
        """Ask before each turn, stop when the condition is above zero: 0 to `max_iter` turns."""
        return self._until(cond, max_iter, "before", masked, "while_cond")

    def until_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> FlowBuilder:
        """Ask after each turn, stop when the condition is above zero: 1 to `max_iter` turns."""
        return self._until(cond, max_iter, "after", masked, "until_cond")

    def _until(self, cond: Target, max_iter: int, asked: Asked, masked: bool, method: str) -> FlowBuilder:
        self._flow._end(self)
        turns = _turns(max_iter, method)
        condition = checked(cond, method)
        loop = Loop(self._body, turns=turns, condition=condition, asked=asked, masked=masked)
        return self._close(loop)

    def _close(self, loop: Loop) -> FlowBuilder:
        self.has_end = True
        return self._flow._loop(loop, self._stream)

    def __getattr__(self, name: str) -> Any:
        raise BuildError(
            f"the loop has no end yet, before .{name}. Call for_n, while_cond or until_cond first."
        )


class MapBuilder(Unfinished):
    """A map that still needs to know what it maps over."""

    def __init__(self, flow: FlowBuilder, body: Target, batched: bool) -> None:
        self._flow, self._body, self._batched = flow, body, batched

    def each(self) -> FlowBuilder:
        """Map the rows of the stream."""
        self._flow._end(self)
        return self._close("each", 1)

    def over(self, tag: str) -> FlowBuilder:
        """Map the rows of a tagged value, which becomes the stream."""
        self._flow._end(self)
        source = self._flow._tagged.get(tag)
        if source is None:
            hint = suggestion(tag, self._flow._tagged, known_as="tags")
            raise RefError(f"map over {tag!r}: there is no such tag so far. {hint}")
        return self._close("each", 1, source)

    def slices(self, n: int) -> FlowBuilder:
        """Map `n` equal slices of the last dimension."""
        self._flow._end(self)
        if not isinstance(n, int) or n < 1:
            raise BuildError(f"slices({n!r}): the number of slices is a whole number from 1 up.")
        return self._close("slices", n)

    def _close(self, mode: MapMode, count: int, source: Draft | None = None) -> FlowBuilder:
        stream = self._flow._stream("map")
        self.has_end = True
        return self._flow._map(self._body, mode, count, self._batched, source or stream)

    def __getattr__(self, name: str) -> Any:
        raise BuildError(f"the map has no source yet, before .{name}. Call each, over or slices first.")


def _turns(n: int, method: str) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise LoopError(
            f"{method} has {n!r} turns. A loop runs at least once: give a whole number from 1 up."
        )
    return n
