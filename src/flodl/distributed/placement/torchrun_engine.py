"""Ranks that torchrun started, as the supervisor sees them."""

from __future__ import annotations

import atexit
import json
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any

from flodl.core import log
from flodl.distributed.ranks import End, to_frame
from flodl.distributed.ranks.main import end_with
from flodl.distributed.supervisor import Launcher, RankSpec, Supervisor

from .mail import BEAT_S, SILENCE_S, UP, down, letter, open_letter, pieces, pop, push
from .places import Placement
from .relay import Relay

# At the end of the program, for ranks to take their last message.
_CLOSE_S = 2.0


class TorchrunEngine:
    """Offers the processes of torchrun as ranks, as they report."""

    may_wait = True
    shares_files = False

    def __init__(self, placement: Placement) -> None:
        self.host, self.start_ranks = placement.address, placement.start_ranks
        self.ranks: list[RankSpec] = []
        self._office = open_office(placement.address, placement.session)
        self.launcher: Launcher = self._office
        if placement.num_restarts:
            log.warn(
                "torchrun has started all ranks again (%d so far), because some ended or others came. "
                "The run resumes from its last save, if there is one.",
                placement.num_restarts,
            )

    def attend(self, supervisor: Supervisor) -> None:
        self._office.attend(supervisor)

    def close(self) -> None:
        self._office.attend(None)


@cache
def open_office(host: str, session: str) -> PostOffice:
    """Return the post office of this process: it serves one run after the other."""
    from flodl.distributed.reduction import connect_store

    name, master_host, master_port, parent = json.loads(session)
    # The supervisor ends with the first rank, which started it.
    end_with(parent)
    office = PostOffice(host)
    atexit.register(office.close)
    store = connect_store(master_port, master_host)
    store.set(f"flodl/{name}/store", json.dumps([host, office.port]))
    return office


class PostOffice:
    """Hosts the store of a session, and distributes what ranks send."""

    def __init__(self, host: str) -> None:
        from flodl.distributed.reduction import connect_store, host_store

        self._store = host_store(host)
        self.port = self._store.port
        day_s = 86_400.0
        self._inbound = connect_store(self.port, host, timeout_s=day_s)
        self._outbound = connect_store(self.port, host)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        # Ranks that wait for a run, and ranks of this run with the time of their last sign of life.
        self._waiting: dict[str, dict[str, Any]] = {}
        self._active: dict[str, tuple[StoreRank, float]] = {}
        # Ranks that have finished a run, and will ask for the next one.
        self._returning: set[int] = set()
        self._supervisor: Supervisor | None = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=target, name="flodl-mail", daemon=True)
            for target in (self._distribute, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def attend(self, supervisor: Supervisor | None) -> None:
        with self._lock:
            self._supervisor = supervisor
        self._offer()

    def start(self, spec: RankSpec) -> StoreRank:
        assert isinstance(spec.place, dict)
        rank = StoreRank(self, spec.place)
        with self._lock:
            self._active[rank.token] = (rank, time.monotonic())
        return rank

    def send(self, token: str, data: bytes) -> None:
        with self._sending, suppress(RuntimeError):
            for piece in pieces(data) if data else [b""]:
                push(self._outbound, down(token), piece)

    def forget(self, token: str) -> None:
        with self._lock:
            self._active.pop(token, None)

    def close(self) -> None:
        """Tell all ranks that the program ends, and end the threads, before the store goes."""
        deadline_s = time.monotonic() + _CLOSE_S
        while (self._active or self._returning) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        told = [*self._waiting]
        for token in told:
            self.send(token, to_frame(End("the program has ended")))
        while time.monotonic() < deadline_s and any(self._store.queue_len(down(token)) for token in told):
            time.sleep(0.01)
        self._closing.set()
        push(self._store, UP, letter("", "closing"))
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _offer(self) -> None:
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None:
                return
            found, self._waiting = [*self._waiting.values()], {}
        for facts in found:
            supervisor.add_rank(RankSpec(facts["device"], address=facts["address"], place=facts))

    def _distribute(self) -> None:
        while not self._closing.is_set():
            token, kind, data = open_letter(pop(self._inbound, UP))
            if kind == "hello":
                facts = json.loads(data) | {"token": token}
                with self._lock:
                    self._waiting[token] = facts
                    self._returning.discard(facts["rank"])
                self._offer()
                continue
            with self._lock:
                rank, _ = self._active.get(token, (None, 0.0))
                if rank is not None:
                    self._active[token] = (rank, time.monotonic())
            if rank is not None and kind == "data":
                rank.link.feed(data)
            elif rank is not None and kind == "bye":
                if not int(data):
                    self._returning.add(rank.number)
                rank.link.end(f"its process ended with code {int(data)}")
                self.forget(token)

    def _beat(self) -> None:
        """Show ranks that the supervisor lives, and find ranks that do not."""
        while not self._closing.wait(BEAT_S):
            now_s = time.monotonic()
            with self._lock:
                active = [*self._active.values()]
                tokens = [*self._active, *self._waiting]
            for token in tokens:
                self.send(token, b"")
            for rank, heard_s in active:
                if now_s > heard_s + SILENCE_S:
                    rank.link.end(f"it has been silent for {SILENCE_S:g} s")


class StoreRank:
    """A rank that torchrun started. Only torchrun can end its process; it is asked to leave this run."""

    sentinel = None

    def __init__(self, office: PostOffice, facts: dict[str, Any]) -> None:
        self.token: str = facts["token"]
        self.number, self.pid = int(facts["rank"]), int(facts["pid"])
        self.host: str = facts["host"]
        self._office = office
        self.link: Any = Relay(lambda data: office.send(self.token, data))

    def exit_reason(self) -> str | None:
        ended: str | None = self.link.ended
        return ended

    def kill(self) -> None:
        if self.link.ended is None:
            # If it can still read this, it comes back as a new rank.
            self.link.send(End("the supervisor continues without it"))
        self._office.forget(self.token)

    def close(self) -> None:
        self.link.close()
