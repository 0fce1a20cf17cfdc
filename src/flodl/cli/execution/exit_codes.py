"""The signal that ended a process, from its exit code."""

from __future__ import annotations

import os
import signal

_CRASH_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


def ending_signal(code: int, program: str) -> str | None:
    """Return the name of the signal that ended a program, or None if it exited.

    sh and docker report a signal that ended their child as exit code 128 + signal.

    >>> ending_signal(-9, "python"), ending_signal(137, "/bin/sh"), ending_signal(137, "python")
    ('SIGKILL', 'SIGKILL', None)
    """
    is_reported = os.path.basename(program) in ("sh", "docker") and code - 128 in _CRASH_SIGNALS
    if code >= 0 and not is_reported:
        return None
    try:
        return signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return None


def describe_signal(name: str) -> str:
    """Return what a signal did to a process, and the likely reason.

    >>> describe_signal("SIGSEGV")
    'killed by SIGSEGV (signal 11).'
    """
    hint = " The system does this when memory runs out; check `dmesg`." if name == "SIGKILL" else ""
    return f"killed by {name} (signal {int(signal.Signals[name])}).{hint}"
