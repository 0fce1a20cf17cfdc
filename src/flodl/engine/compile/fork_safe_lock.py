"""A lock that a forked process does not inherit in the locked state."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """Holds a lock, and replaces it in a forked process, where the thread that held it does not exist."""

    def __init__(self) -> None:
        self.current = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._replace)

    def _replace(self) -> None:
        self.current = threading.Lock()
