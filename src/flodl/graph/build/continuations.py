"""The second half of a loop or a map in the builder: how often it runs, and over what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from flodl.core import BuildError, LoopError, RefError
from flodl.core.integers import as_integer, is_integer
from flodl.core.paths import check_name, suggestion
from flodl.core.usage.calls import BuildCallError, LoopCallError, check_flag, explain_methods

from ..control import Loop, Map
from ..control.loop import Asked
from ..control.map import MapMode
from .draft import Draft, NoSuchMethod, Target, Unfinished, check_target

Flow = TypeVar("Flow")
# Called by the builder once the loop or map may be closed: returns it, and its source if not the stream.
Make = Callable[[], tuple[Loop | Map, Draft | None]]


@explain_methods(
    LoopCallError,
    examples={
        "for_n": "Write for_n(3).",
        "while_cond": "Write while_cond(cond, max_iter=10).",
        "until_cond": "Write until_cond(cond, max_iter=10).",
    },
)
class LoopBuilder(Unfinished, Generic[Flow]):
    """A loop that still needs its number of iterations or its condition; `close` adds it to the chain."""

    def __init__(self, body: Target, close: Callable[[LoopBuilder[Flow], Make], Flow]) -> None:
        self._body, self._close = body, close

    def for_n(self, n: int) -> Flow:
        """Run the body exactly `n` times."""
        return self._close(self, lambda: (Loop(self._body, turns=_check_count(n, "for_n")), None))

    def while_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> Flow:
        """Check the condition before each iteration and stop when it is above zero: 0 to `max_iter` times."""
        return self._close_with(cond, max_iter, "before", masked, "while_cond")

    def until_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> Flow:
        """Check the condition after each iteration and stop when it is above zero: 1 to `max_iter` times."""
        return self._close_with(cond, max_iter, "after", masked, "until_cond")

    def _close_with(self, cond: Target, max_iter: int, asked: Asked, masked: bool, method: str) -> Flow:
        def make() -> tuple[Loop, None]:
            turns = _check_count(max_iter, method)
            check_flag(method, "masked", masked, LoopCallError)
            condition = check_target(cond, method)
            return Loop(self._body, turns=turns, condition=condition, asked=asked, masked=masked), None

        return self._close(self, make)

    def __getattr__(self, name: str) -> Any:
        raise NoSuchMethod(
            f".{name} comes before the end of the loop. Call for_n, while_cond or until_cond first."
        )


@explain_methods(
    BuildCallError,
    examples={"each": "Write each().", "over": "Write over('tokens').", "slices": "Write slices(4)."},
)
class MapBuilder(Unfinished, Generic[Flow]):
    """A map that still needs its source; `close` adds it to the chain."""

    def __init__(
        self,
        body: Target,
        batched: bool,
        tagged: Mapping[str, Draft],
        close: Callable[[MapBuilder[Flow], Make], Flow],
    ) -> None:
        self._body, self._batched, self._tagged, self._close = body, batched, tagged, close

    def each(self) -> Flow:
        """Map the rows of the stream."""
        return self._close(self, lambda: (self._map("each"), None))

    def over(self, tag: str) -> Flow:
        """Map the rows of a tagged value. The result becomes the stream."""

        def make() -> tuple[Map, Draft]:
            source = self._tagged.get(check_name(tag, "tag"))
            if source is None:
                hint = suggestion(tag, self._tagged, known_as="tags")
                raise RefError(f"map over {tag!r}: this tag does not exist yet. {hint}")
            return self._map("each"), source

        return self._close(self, make)

    def slices(self, n: int) -> Flow:
        """Map `n` equal slices of the last dimension."""

        def make() -> tuple[Map, None]:
            count = as_integer(n)
            if not is_integer(count, at_least=1):
                raise BuildError(f"slices({n!r}): the number of slices must be an integer of at least 1.")
            return self._map("slices", count), None

        return self._close(self, make)

    def _map(self, mode: MapMode, count: int = 1) -> Map:
        return Map(self._body, mode=mode, count=count, batched=self._batched)

    def __getattr__(self, name: str) -> Any:
        raise NoSuchMethod(f".{name} comes before the source of the map. Call each, over or slices first.")


def _check_count(n: int, method: str) -> int:
    count = as_integer(n)
    if not is_integer(count, at_least=1):
        raise LoopError(f"{method} got {n!r} iterations. Pass an integer of at least 1.")
    return int(count)
