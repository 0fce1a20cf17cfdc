"""Run a program and capture what it prints, with a limit on its time and its output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_OUTPUT_BYTES = 4_000_000


class Captured(NamedTuple):
    """The exit code of a program and what it printed."""

    code: int
    stdout: str
    stderr: str


class OutputTooLongError(Exception):
    """The program printed more than `MAX_OUTPUT_BYTES`; it was killed."""


def capture(
    command: Sequence[str], *, cwd: Path | None, timeout_s: float, env: Mapping[str, str] | None = None
) -> Captured:
    """Run a program and return what it printed.

    It has no standard input. A program that takes too long or prints too much is killed, with every process
    that it has started; then this raises `subprocess.TimeoutExpired` or `OutputTooLongError`.
    """
    end_s = time.monotonic() + timeout_s
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **pipes) as child:  # type: ignore[call-overload]
        try:
            stdout, stderr = _read(child, end_s, timeout_s)
            code = child.wait(max(end_s - time.monotonic(), 0.1))
        except BaseException:
            _kill(child)
            raise
    return Captured(code, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def _read(child: subprocess.Popen[bytes], end_s: float, timeout_s: float) -> tuple[bytes, bytes]:
    assert child.stdout is not None
    assert child.stderr is not None
    parts: dict[int, list[bytes]] = {child.stdout.fileno(): [], child.stderr.fileno(): []}
    num_bytes = 0
    with selectors.DefaultSelector() as selector:
        for handle in parts:
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(end_s - time.monotonic(), 0.0))
            if not ready:
                raise subprocess.TimeoutExpired(child.args, timeout_s)
            for key, _ in ready:
                content = os.read(key.fd, 1 << 16)
                parts[key.fd].append(content)
                num_bytes += len(content)
                if num_bytes > MAX_OUTPUT_BYTES:
                    raise OutputTooLongError
                if not content:
                    selector.unregister(key.fd)
    stdout, stderr = (b"".join(found) for found in parts.values())
    return stdout, stderr


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):
        child.kill()
