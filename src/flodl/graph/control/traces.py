"""The values that a loop body publishes in each iteration."""

from __future__ import annotations

from typing import Any

from flodl.core import LoopError
from flodl.observe import LastValues


class Traces(LastValues):
    """Published values by name, one per iteration that published; copies and pickles do not contain them."""

    def __init__(self) -> None:
        super().__init__({})
        self.has_run = False

    def begin(self) -> None:
        """Start a new call of the loop."""
        self.values = {}
        self.has_run = True

    def forget_failed_call(self) -> None:
        """Drop the values of a call that failed, and of the one before it if the loop was not reached."""
        self.values = {}

    def add(self, name: str, value: Any) -> None:
        """Append one value."""
        if name in self.values:
            self.values[name].append(value)
        else:
            self.values[name] = [value]

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.values = {}
        self.has_run = False


class Emit:
    """Passed to a loop body that has a parameter `emit`: `emit("attention", weights)`."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._published: list[str] = []

    def __call__(self, name: str, value: Any) -> None:
        """Publish a value of this iteration under a name."""
        if name in self._published:
            raise LoopError(
                f"the loop body publishes {name!r} twice in one iteration. Publish each name once."
            )
        self._published.append(name)
        self._traces.add(name, value)

    publish = __call__
