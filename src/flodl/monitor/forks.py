"""A forked child has a copy of everything, but the run belongs to its parent: the copies let go."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that only the process that made it may use."""

    def leave_to_parent(self) -> None:
        """Stop being used: this is the copy in a child process."""


_OWNED: weakref.WeakSet[Forkable] = weakref.WeakSet()


def own(thing: Forkable) -> None:
    """Keep a thing for this process: in a child that is forked from it, `leave_to_parent` is called."""
    _OWNED.add(thing)


def _leave_all() -> None:
    for thing in tuple(_OWNED):
        thing.leave_to_parent()
    _OWNED.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_all)
