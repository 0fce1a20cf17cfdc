"""Methods that write log messages, which compiled code leaves out."""

from __future__ import annotations

import logging
from typing import Any

_LEVELS = ("debug", "info", "warning", "warn", "error", "critical", "exception", "log")


class LogMethods(set[Any]):
    """The set of all methods of loggers that write a message.

    Libraries add methods of their own, such as `warning_once` in transformers. The set is empty when it is
    iterated, so that torch can write its settings as JSON.

    >>> methods = LogMethods()
    >>> logging.getLogger().info in methods, logging.getLogger().isEnabledFor in methods, print in methods
    (True, False, False)
    """

    def __contains__(self, method: object) -> bool:
        name = getattr(method, "__name__", "")
        return isinstance(getattr(method, "__self__", None), logging.Logger) and name.startswith(_LEVELS)
