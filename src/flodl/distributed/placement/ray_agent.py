"""What runs inside Ray actors: a rank, or the program of the supervisor, as a process of its own.

The same process as on one machine: with its own main thread, its own session, and an exit code. It ends with
its actor.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from flodl.core.environment import LAUNCH
from flodl.distributed.supervisor.launcher import kill_group, start_process

from .places import Placement

_PIECE = 1 << 20
# Actors ignore or block signals, and what they start would inherit that.
_RESET_SIGNALS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_SETMASK, []); os.execv(sys.argv[1], sys.argv[1:])"
)


class RankAgent:
    """The actor of a rank. `deliver` and `collect` are called one at a time, each in its own thread."""

    def __init__(self, path: Sequence[str], argv: Sequence[str], folder: str) -> None:
        known = [each for each in path if os.path.exists(each)]
        at = folder if os.path.isdir(folder) else None
        self._process, self._socket = start_process(known, argv, folder=at)

    def facts(self) -> dict[str, Any]:
        """Return where this actor runs."""
        from .ray_cluster import import_ray

        address = import_ray().util.get_node_ip_address()
        return {"address": address, "host": socket.gethostname(), "pid": self._process.pid}

    def deliver(self, data: bytes) -> None:
        """Pass bytes of the supervisor to the rank."""
        with suppress(OSError):
            self._socket.sendall(data)

    def collect(self) -> tuple[bytes, int | None]:
        """Return the next bytes of the rank; or none, and its exit code, once it has ended."""
        try:
            data = self._socket.recv(_PIECE)
        except OSError:
            data = b""
        if data:
            return data, None
        kill_group(self._process.pid)
        return b"", self._process.wait()


def _with_parent(variables: Mapping[str, str]) -> dict[str, str]:
    """Tell the program which process it must not outlive."""
    placement = Placement.from_json(variables[LAUNCH])
    return {**variables, LAUNCH: replace(placement, session=str(os.getpid())).to_json()}


class ProgramAgent:
    """The actor of the supervisor: it runs the user's program, and keeps its output for the caller."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RESET_SIGNALS, *command],
            env=_with_parent(variables),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._output: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._num_open = 2
        for name in ("stdout", "stderr"):
            threading.Thread(target=self._read, args=(name,), daemon=True).start()

    def _read(self, name: str) -> None:
        stream = getattr(self._process, name)
        while data := os.read(stream.fileno(), _PIECE):
            self._output.put((name, data))
        self._output.put((name, b""))

    def read(self) -> tuple[str, bytes] | int:
        """Return the next output and its stream; the exit code, once the program has ended."""
        while self._num_open:
            name, data = self._output.get()
            if data:
                return name, data
            self._num_open -= 1
        return self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def pid(self) -> int:
        return self._process.pid
