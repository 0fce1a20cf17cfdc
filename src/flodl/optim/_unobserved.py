"""A note that a schedule which follows a metric has observed none, in a loop of your own."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from flodl.core import log

# An epoch may have many updates; a program that ends has no more of them.
_STEPS_OF_AN_EPOCH, _STEPS_OF_A_RUN = 20_000, 100


class Unobserved:
    """Count the steps of a bridge, and note once that its schedule has observed nothing.

    >>> class Watcher:
    ...     has_observed = False
    >>> count = Unobserved(Watcher())
    >>> count.count_step()
    >>> count.steps, count.is_noted
    (1, False)
    """

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self.steps, self.is_noted = 0, False

    def count_step(self) -> None:
        """Count a step; after more than an epoch is likely to have, note that nothing was observed."""
        self.steps += 1
        if self.steps >= _STEPS_OF_AN_EPOCH and not self.is_noted:
            self._note()

    def note_at_end_of(self, bridge: object) -> None:
        """Note the same when a bridge is deleted, or the program ends without an error."""
        if self._watcher is not None:
            weakref.finalize(bridge, self._note_at_end)

    def _note_at_end(self) -> None:
        if self.steps >= _STEPS_OF_A_RUN and not self.is_noted and not was_stopped_by_error():
            self._note()

    def _note(self) -> None:
        self.is_noted = True
        if getattr(self._watcher, "has_observed", True) is False:
            log.warn(
                "%s has observed no metric in %d updates, so it has not changed the learning rate. Call "
                "bridge.observe(metric) once per epoch, on the bridge that apply returned.",
                type(self._watcher).__name__,
                self.steps,
            )


def was_stopped_by_error() -> bool:
    """Return whether an error has ended the program, or is being handled."""
    return getattr(sys, "last_type", None) is not None or sys.exc_info()[0] is not None
