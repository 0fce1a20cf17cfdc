"""Disable copies of the monitor's objects in forked child processes: the run belongs to the parent."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from typing import Protocol


class ForkAware(Protocol):
    """An object that only the process that created it may use."""

    def after_fork_in_child(self) -> None:
        """Disable this copy in a child process."""


_REGISTERED: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register_after_fork(item: ForkAware) -> None:
    """Call `item.after_fork_in_child()` in every child that is forked from this process."""
    _REGISTERED.add(item)


def _disable_all() -> None:
    with ExitStack() as stack:  # calls all of them, even after one fails
        stack.callback(_REGISTERED.clear)
        for item in tuple(_REGISTERED):
            stack.callback(item.after_fork_in_child)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_disable_all)
