"""Starting the processes of ranks on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from flodl.distributed.ranks import Connection, Link

PROGRAM = (
    "import sys; sys.path[:] = {path!r}; sys.argv[:] = {argv!r}; "
    "from flodl.distributed.ranks.main import main; main({handle}, {parent})"
)


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Where a rank runs. `threads` is the number of CPU threads of its operators; None chooses.

    `address` is the address of its host at which it listens for other ranks. `place` belongs to the launcher.
    """

    device: str = "cpu"
    threads: int | None = None
    address: str = "127.0.0.1"
    place: object = None


class RankProcess(Protocol):
    """A process that runs a rank, and the connection to it."""

    pid: int
    host: str
    link: Connection

    @property
    def sentinel(self) -> int | None:
        """A file descriptor that is readable once the process has ended; None if there is none."""

    def exit_reason(self) -> str | None:
        """Return how the process ended, or None if it runs."""

    def kill(self) -> None:
        """End the process and the processes that it started, at once."""

    def close(self) -> None:
        """Release everything; the process has ended, or was killed."""


class Launcher(Protocol):
    def start(self, spec: RankSpec) -> RankProcess: ...


class LocalLauncher:
    """Starts ranks as processes with their own session, connected by a socket pair."""

    def start(self, spec: RankSpec) -> RankProcess:
        return LocalProcess(*start_process(sys.path, getattr(sys, "argv", [""])))


def start_process(
    path: Sequence[str], argv: Sequence[str], *, folder: str | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process of a rank, and return it with the connection to it."""
    own, other = socket.socketpair()
    with other:
        handle = other.fileno()
        program = PROGRAM.format(path=list(path), argv=list(argv), handle=handle, parent=os.getpid())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(handle,),
                cwd=folder,
                # Ctrl-C in the terminal is for the supervisor; all processes of a rank end together.
                start_new_session=True,
            )
        except BaseException:
            own.close()
            raise
    return process, own


class LocalProcess:
    """A rank that this process started."""

    def __init__(self, process: subprocess.Popen[bytes], connected: socket.socket) -> None:
        self._process = process
        self.pid, self.host = process.pid, socket.gethostname()
        self.link: Connection = Link(connected)
        self._sentinel = open_sentinel(process.pid)

    @property
    def sentinel(self) -> int | None:
        return self._sentinel

    def exit_reason(self) -> str | None:
        # Without collecting it: its number must stay taken until `kill` ended its group.
        code = self._process.returncode
        if code is None and hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return None
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        elif code is None:
            code = self._process.poll()
        return None if code is None else describe_exit(code)

    def kill(self) -> None:
        # After its end, too: the processes that it started may live on.
        kill_group(self.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)

    def close(self) -> None:
        self.link.close()
        if self._sentinel is not None:
            os.close(self._sentinel)
            self._sentinel = None
        # A process in the kernel, waiting for a device, may not end; do not warn about it.
        if self._process.poll() is None:
            self._process.returncode = -signal.SIGKILL


def open_sentinel(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, where the system has one.

    >>> sentinel = open_sentinel(os.getpid())
    >>> if sentinel is not None:
    ...     os.close(sentinel)
    """
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Return the exit of a process in words.

    >>> describe_exit(3), describe_exit(-9)
    ('its process ended with code 3', 'its process was killed by SIGKILL')
    """
    if code >= 0:
        return f"its process ended with code {code}"
    with suppress(ValueError):
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process was killed by signal {-code}"


def wait_for_exit(process: RankProcess, timeout_s: float) -> str | None:
    """Return how a process ended, waiting for it at most this long."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        reason = process.exit_reason()
        if reason is not None or time.monotonic() > deadline_s:
            return reason
        time.sleep(0.001)
