"""A limit on the number of saves in progress."""

from __future__ import annotations

import threading


class Slots:
    """Limits the number of saves in progress, including those that wait to be written."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._changed = threading.Condition()

    def acquire(self, *, wait: bool) -> bool:
        """Take a slot; return False if all are taken and `wait` is False."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._used < self._limit, None if wait else 0)
            self._used += free
            return free

    def release(self) -> None:
        """Return a slot."""
        with self._changed:
            self._used -= 1
            self._changed.notify_all()

    def wait_until_free(self) -> None:
        """Return when no slot is taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._used == 0)

    @property
    def are_free(self) -> bool:
        """Whether no slot is taken."""
        return self._used == 0
