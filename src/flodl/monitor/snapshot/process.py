"""Find out whether the process that writes a journal is still running."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_QUIET_S = 30.0
# Process start times are rounded to clock ticks, and the system clock may have been adjusted since.
_CLOCK_TOLERANCE_S = 60.0


def is_alive(facts: Mapping[str, Any], *, started_s: float | None, last_s: float) -> bool:
    """Return whether the process of a `run_start` runs; on another host, whether it wrote recently.

    A pid that was reused by another process and a zombie both count as ended.
    """
    pid = facts.get("pid")
    if not isinstance(pid, int) or not is_local(facts):
        return time.time() - last_s < _QUIET_S
    psutil: Any = import_module("psutil")
    try:
        return _is_running(psutil, pid, started_s)
    except (ValueError, OverflowError):  # not a valid pid
        return False


def is_local(facts: Mapping[str, Any]) -> bool:
    """Return whether a run was started on this host."""
    return bool(facts.get("host") == socket.gethostname())


def _is_running(psutil: Any, pid: int, started_s: float | None) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        return bool(started_s is None or process.create_time() < started_s + _CLOCK_TOLERANCE_S)
    except psutil.Error:  # the process has ended, or it belongs to another user
        return bool(psutil.pid_exists(pid))
