"""A process that torchrun started: it serves as a rank of the supervisor that the first of them starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from flodl.core import DistributedError, environment, log
from flodl.distributed.ranks import Start

from .mail import SILENCE_S, UP, StoreChannel, letter, push
from .places import Placement, launched_placement

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

SESSION = "flodl/session"
# How long to wait for the first process to come, if what it left behind is from an earlier start.
_STALE_S = 30.0
_REPORT_S = 3.0
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of this process among those of torchrun."""

    rank: int
    local_rank: int
    world_size: int
    num_hosts: int
    # The store through which these processes find each other; torchrun or the first of them hosts it.
    master: tuple[str, int]
    torchrun_hosts: bool
    # Restarts after failures; torchrun does not count those because hosts came or went.
    num_restarts: int = 0

    @property
    def hosts_store(self) -> bool:
        return self.rank == 0 and not self.torchrun_hosts

    def open_store(self) -> TCPStore:
        from flodl.distributed.reduction import connect_store, host_store

        host, port = self.master
        if self.hosts_store:
            return host_store(self.address, port=port)
        return connect_store(port, host if self.torchrun_hosts or self.num_hosts > 1 else self.address)

    @property
    def address(self) -> str:
        """The address of this host for the others; loopback if there are none."""
        return "127.0.0.1" if self.num_hosts == 1 else address_towards(*self.master)


def find_seat() -> Seat | None:
    """Return the place of this process, or None if torchrun did not start it."""
    found = environment.torchrun_variables()
    if found is None:
        return None
    return Seat(
        int(found["RANK"]),
        int(found["LOCAL_RANK"]),
        int(found["WORLD_SIZE"]),
        int(found["GROUP_WORLD_SIZE"] or 1),
        (found["MASTER_ADDR"], int(found["MASTER_PORT"])),
        found["TORCHELASTIC_USE_AGENT_STORE"] == "True",
        int(found["TORCHELASTIC_RESTART_COUNT"] or 0),
    )


def address_towards(host: str, port: int) -> str:
    """Return the address of this host on the way to another one.

    >>> address_towards("127.0.0.1", 80)
    '127.0.0.1'
    """
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        found: str = probe.getsockname()[0]
    return found


def serve_if_rank() -> None:
    """Serve as a rank, and exit, if torchrun started this process; otherwise do nothing."""
    launched = launched_placement()
    if launched is not None and launched.session:
        return
    seat = find_seat()
    if seat is not None:
        serve(seat, [sys.executable, *sys.orig_argv[1:]], launched or Placement(on="torchrun"))


def serve(seat: Seat, program: Sequence[str], placement: Placement) -> NoReturn:
    """Start the supervisor, which runs the program, if this is the first rank. Then train until it ends."""
    if seat.num_hosts > 1 and seat.address.startswith("127."):
        raise DistributedError(
            f"the name {seat.master[0]!r} of the first host is a loopback address, which other hosts cannot "
            "reach. Pass torchrun --local-addr with the address of this host."
        )
    store = seat.open_store()
    supervisor = SupervisorProcess(seat, store, program, placement) if seat.rank == 0 else None
    session = Session(store, supervisor.session if supervisor else "")
    code = session.run(seat, placement)
    session.leave(seat)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # Not sys.exit: nothing after `fit` may run here, and threads must not delay the end.
    os._exit(code)


class SupervisorProcess:
    """The supervisor, as a process that the first rank started. It ends with it."""

    def __init__(self, seat: Seat, store: TCPStore, program: Sequence[str], placement: Placement) -> None:
        num_starts = store.add(f"{SESSION}s", 1)
        self.session, self._store = f"{os.getpid()}-{uuid.uuid4().hex}", store
        ranks = (seat.world_size, seat.world_size)
        told = replace(placement, on="torchrun", ranks=ranks, devices=(), address=seat.address)
        link = json.dumps([self.session, store.host, store.port, os.getpid()])
        told = replace(told, session=link, num_restarts=max(num_starts - 1, seat.num_restarts))
        variables = environment.without_torchrun() | {environment.LAUNCH: told.to_json()}
        self._process = subprocess.Popen([*program], env=variables, start_new_session=True)
        store.set(SESSION, self.session)
        threading.Thread(target=self._watch, name="flodl-supervisor", daemon=True).start()

    def _watch(self) -> None:
        code = self._process.wait()
        store: Any = self._store
        store.clone().set(f"flodl/{self.session}/over", str(code if code >= 0 else 1))


class Session:
    """What a rank does from its start until the program of the supervisor has ended."""

    def __init__(self, store: TCPStore, session: str) -> None:
        self._store, self._session = store, session

    def run(self, seat: Seat, placement: Placement) -> int:
        """Train run after run; return the exit code."""
        found = self._connect()
        while found is not None:
            environment.note_launch_used()
            code = self._train(seat, placement, *found)
            if code is not None:
                return code
        return self._exit_code()

    def _connect(self) -> tuple[str, int] | None:
        """Return where the store of the supervisor is; None if its program ended without training."""
        from torch.distributed import DistError

        from flodl.distributed.reduction import connect_store

        is_ours = bool(self._session)
        deadline_s = time.monotonic() + _STALE_S
        while True:
            if not is_ours and self._store.check([SESSION]):
                self._session = self._store.get(SESSION).decode()
            if self._store.check([f"flodl/{self._session}/store"]):
                host, port = json.loads(self._store.get(f"flodl/{self._session}/store"))
                with suppress(DistError):
                    connect_store(port, host, timeout_s=2.0)
                    return host, port
            # What an earlier start left behind looks like this too.
            is_over = self._store.check([f"flodl/{self._session}/over"])
            if is_over and (is_ours or time.monotonic() > deadline_s):
                return None
            time.sleep(0.05)

    def _train(self, seat: Seat, placement: Placement, host: str, port: int) -> int | None:
        """Serve in one run; return the exit code if the process has to end."""
        from flodl.distributed.ranks.main import run_rank
        from flodl.distributed.reduction import connect_store

        token = uuid.uuid4().hex
        day_s = 86_400.0
        try:
            sender = connect_store(port, host, timeout_s=SILENCE_S)
            receiver = connect_store(port, host, timeout_s=day_s)
            push(sender, UP, letter(token, "hello", json.dumps(_facts(seat, placement)).encode()))
        except RuntimeError:
            return self._exit_code()
        channel = StoreChannel(sender, receiver, token)
        threading.Thread(target=_watch, args=(channel,), name="flodl-watch", daemon=True).start()
        try:
            start = channel.receive()
        except EOFError:
            return self._exit_code()
        if not isinstance(start, Start):
            channel.close()
            return self._exit_code()
        code = run_rank(channel, start)
        with suppress(RuntimeError):
            push(sender, UP, letter(token, "bye", str(code).encode()))
        channel.close()
        if code:
            # The supervisor ends with the first rank: let it print the error before.
            self._exit_code(_REPORT_S)
        return code or None

    def leave(self, seat: Seat) -> None:
        """Let the others read what they need, if this process hosts their store."""
        key = f"flodl/{self._session}/left"
        deadline_s = time.monotonic() + _LEAVE_S
        with suppress(RuntimeError):
            num_left = self._store.add(key, 1)
            while seat.hosts_store and num_left < seat.world_size and time.monotonic() < deadline_s:
                time.sleep(0.02)
                num_left = self._store.add(key, 0)

    def _exit_code(self, timeout_s: float = SILENCE_S) -> int:
        """Return the exit code of the supervisor's program; 1 if it does not end in time."""
        key = f"flodl/{self._session}/over"
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            try:
                if self._store.check([key]):
                    return int(self._store.get(key))
            except RuntimeError:
                break
            time.sleep(0.05)
        return 1


def _facts(seat: Seat, placement: Placement) -> dict[str, object]:
    from .devices import local_devices

    if placement.devices:
        device = placement.devices[seat.local_rank]
    else:
        device = local_devices(seat.local_rank + 1)[-1]
    return {
        "device": device,
        "address": seat.address,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": seat.rank,
    }


def _watch(channel: StoreChannel) -> None:
    """End this process if the supervisor has been silent for too long: the network may be cut."""
    while not channel.is_closed:
        time.sleep(1.0)
        if time.monotonic() > channel.last_heard_s + 2 * SILENCE_S:
            log.error("the supervisor has been silent for %g s, so this rank ends.", 2 * SILENCE_S)
            os._exit(1)


def main() -> None:
    """`python -m flodl.distributed.placement.torchrun_rank script.py …`: run a script below torchrun.

    Unlike a script that torchrun runs itself, it runs once, in the process of the supervisor.
    """
    seat = find_seat()
    if seat is None:
        raise SystemExit("error: this program is started by torchrun; use `fdl launch --on torchrun`.")
    serve(seat, [sys.executable, *sys.argv[1:]], launched_placement() or Placement(on="torchrun"))


if __name__ == "__main__":
    main()
