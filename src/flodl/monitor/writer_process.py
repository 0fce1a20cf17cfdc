"""Whether the process that writes a journal still lives, as far as this machine can tell."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_QUIET_S = 30.0
# Clocks of processes are read in ticks, and the wall clock may have been set meanwhile.
_CLOCKS_DIFFER_S = 60.0


def is_alive(facts: Mapping[str, Any], *, started_s: float | None, last_s: float) -> bool:
    """Look for the process of a `run_start`; of another machine's, what it wrote last must do.

    A number is given to another process some day, and a process that has died may stay in the table
    until somebody asks for it: both are gone.
    """
    pid = facts.get("pid")
    if not isinstance(pid, int) or facts.get("host") != socket.gethostname():
        return time.time() - last_s < _QUIET_S
    psutil: Any = import_module("psutil")
    try:
        return _is_the_same(psutil, pid, started_s)
    except (ValueError, OverflowError):  # no number of a process
        return False


def _is_the_same(psutil: Any, pid: int, started_s: float | None) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        return bool(started_s is None or process.create_time() < started_s + _CLOCKS_DIFFER_S)
    except psutil.Error:  # gone, or somebody else's and hidden from us
        return bool(psutil.pid_exists(pid))
