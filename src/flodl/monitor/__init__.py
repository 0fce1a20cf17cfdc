"""Watching a run: one journal that everything else is a view of, a live page, archives and exports.

Names are loaded when they are first used: reading a journal needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Event": "events",
    "Journal": "journal",
    "Monitor": "monitor",
    "read": "journal",
}

__all__ = ["Event", "Journal", "Monitor", "read"]

if TYPE_CHECKING:
    from .events import Event
    from .journal import Journal, read
    from .monitor import Monitor
else:

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module 'flodl.monitor' has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
