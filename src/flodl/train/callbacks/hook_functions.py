"""Hooks whose body would never run, and hooks that seem to return a request to stop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from flodl.core import TrainError, log


def check_function(function: Callable[..., Any], hook: str) -> None:
    """Raise if a call of a hook would not run its body.

    >>> def on_epoch_end(metrics):
    ...     yield metrics
    >>> check_function(on_epoch_end, "on_epoch_end")
    Traceback (most recent call last):
    flodl.core.errors.TrainError: on_epoch_end is a generator function (it contains yield), so a call runs ...
    """
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004, an object may have an async __call__
        if inspect.iscoroutinefunction(called):
            raise _never_runs(function, hook, "a coroutine function (async def)")
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise _never_runs(function, hook, "a generator function (it contains yield)")


def check_result(result: Any, function: Callable[..., Any], hook: str) -> Any:
    """Return the result of a hook; raise if it is a coroutine or a generator, whose body has not run."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns that it was never awaited
        raise _never_runs(function, hook, "a function that returns a coroutine")
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        raise _never_runs(function, hook, "a function that returns a generator")
    return result


def _never_runs(function: Callable[..., Any], hook: str, what: str) -> TrainError:
    name = getattr(function, "__qualname__", hook).rpartition("<locals>.")[2]
    return TrainError(
        f"{name} is {what}, so a call runs none of its code. A trainer calls a hook and does not wait "
        f"for it: write a plain function, def {hook}(…)."
    )


class StopRequests:
    """Report once that the result of a hook has no effect if it looks like a request to stop.

    A hook that always returns True is not reported: a request to stop follows other results.
    """

    def __init__(self) -> None:
        self.report: Callable[[str], object] = log.msg
        # Which hooks have returned something else, and which were reported.
        self._others: set[str] = set()
        self._reported: set[str] = set()

    def check(self, callback: Any, name: str, result: Any, *, has_stopped: bool) -> None:
        """Look at the result of a hook."""
        is_text = isinstance(result, str) and result.lower() == "stop"
        key = f"{name} {id(callback)}"
        if not is_text and result is not True:
            self._others.add(key)
        elif not has_stopped and key not in self._reported and (is_text or key in self._others):
            self._reported.add(key)
            self.report(
                f"{name} returned {result!r}, which has no effect. To stop the run, a hook calls "
                "trainer.stop('the reason')."
            )
