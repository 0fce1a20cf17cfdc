"""The process of a rank; started by a launcher, never by hand."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from .ahead import AheadAveraging, AheadInbox
from .averaging import Averaging
from .channel import Channel, SocketChannel
from .faults import Faults
from .inbox import Inbox, end_own_group
from .loop import RankLoop
from .messages import Failure, Start
from .pulse import Pulse
from .tracebacks import line_of_user, without_own_frames

_PR_SET_PDEATHSIG = 1


def main(handle: int, parent: int) -> None:
    """Run the rank whose supervisor is at the other end of this socket, and exit."""
    end_with(parent)
    if sys.platform != "win32":
        # What starts a rank may block signals, and its processes would inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Ctrl-C is for the supervisor, which ends its ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = SocketChannel(socket.socket(fileno=handle))
    # The connection stays open until the process has ended, after functions that run at its exit.
    os.dup(handle)
    try:
        start = channel.receive()
    except EOFError:
        end_own_group()
    code = run_rank(channel, start)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code:
        # Threads of the user's code must not keep a failed rank alive.
        os._exit(code)


def end_with(parent: int) -> None:
    """Let the kernel end this process if its parent ends, even if it is stopped or does not run Python."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            end_own_group()


def run_rank(channel: Channel, start: Start) -> int:
    """Train until the supervisor ends the rank; report an error to it. Return the exit code."""
    loop: RankLoop | None = None
    inbox = Inbox(channel)
    pulse = Pulse(channel, start.beat_s, lambda: 0 if loop is None else loop.progress)
    try:
        loop = make_loop(channel, inbox, start)
        loop.run()
    except BaseException as error:
        where = (loop.doing, loop.step) if loop else ("creating its worker", 0)
        with suppress(OSError):
            channel.send(failure_of(error, start, *where))
        return 1
    finally:
        pulse.close()
    return 0


def make_loop(channel: Channel, inbox: Inbox, start: Start) -> RankLoop:
    """Create the worker and everything around it."""
    import cloudpickle  # type: ignore[import-untyped]
    import torch

    from flodl.distributed.reduction import connect_store

    info = start.info
    faults = Faults(start.faults, info.rank)
    faults.reach("start", 0)
    if start.threads is not None:
        torch.set_num_threads(start.threads)
    make_worker, make_reducer = cloudpickle.loads(start.payload)
    worker = make_worker(info)
    reducer = make_reducer(worker.state, keep_local=start.is_ahead)
    reducer.host = info.address
    outer = getattr(worker, "outer_state", None)
    if outer:
        reducer.begin(start.version, outer)
    host, port = start.store
    parts: Any = (info.rank, reducer, connect_store(port, host), channel.send, faults)
    if not start.is_ahead:
        averaging = Averaging(*parts, digests=start.digests)
        return RankLoop(info, worker, averaging, inbox, channel, faults)
    ahead = AheadAveraging(*parts, digests=start.digests)
    return RankLoop(info, worker, ahead, AheadInbox(inbox, ahead), channel, faults)


def failure_of(error: BaseException, start: Start, doing: str, step: int) -> Failure:
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(
        start.info.rank,
        start.info.host,
        os.getpid(),
        step,
        doing,
        message,
        without_own_frames(error),
        line_of_user(error),
    )
