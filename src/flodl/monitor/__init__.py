"""Monitor a run: a journal of events, and the console, live page, archives and exports that show it.

Names are loaded on first use, so that reading a journal does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Console": "console",
    "Event": "events",
    "Journal": "journal",
    "Monitor": "monitor",
    "complete_journal": "recorder",
    "read": "journal",
    "register_after_fork": "fork_safety",
    "set_aside_earlier_run": "journal",
    "step_note": "recorder",
}

__all__ = [
    "Console",
    "Event",
    "Journal",
    "Monitor",
    "complete_journal",
    "read",
    "register_after_fork",
    "set_aside_earlier_run",
    "step_note",
]

if TYPE_CHECKING:
    from .console import Console
    from .events import Event
    from .fork_safety import register_after_fork
    from .journal import Journal, read, set_aside_earlier_run
    from .monitor import Monitor
    from .recorder import complete_journal, step_note
else:

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module 'flodl.monitor' has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
