"""Ranks as Ray actors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from flodl.core import log
from flodl.distributed.ranks.main import end_with
from flodl.distributed.supervisor import Launcher, RankSpec, Supervisor
from flodl.distributed.supervisor.launcher import describe_exit

from .places import Placement
from .ray_agent import RankAgent
from .ray_cluster import connect, device_kind, first_line, resources
from .relay import Relay

_PATIENCE_S = 10.0
# A seat whose rank was lost is given again after this time, and twice as long after each further loss.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Calls:
    """Calls functions one after the other, in a thread of its own.

    Ray completes futures in the thread that receives all its replies. A call of Ray from there can wait
    forever for its own reply.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="flodl-ray", daemon=True).start()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()

    def when_done(self, reference: Any, handle: Callable[[Any], object]) -> None:
        """Call a function with the future of a reference, once it is done."""
        reference.future().add_done_callback(lambda done: self._queue.put(lambda: handle(done)))

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        timer = threading.Timer(delay_s, lambda: self._queue.put(call))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        self._queue.put(None)


class Seat:
    """A place that is wanted for a rank, and how often its rank was lost."""

    def __init__(self, device: str) -> None:
        self.device, self.num_losses = device, 0

    def pause_s(self) -> float:
        """Return how long to wait before the seat is given again.

        >>> seat = Seat("cpu")
        >>> [seat.pause_s() for seat.num_losses in range(4)]
        [0.0, 1.0, 2.0, 4.0]
        """
        if not self.num_losses:
            return 0.0
        return min(_FIRST_PAUSE_S * 2.0 ** (self.num_losses - 1), _LONGEST_PAUSE_S)


class RayEngine:
    """Asks Ray for an actor for each rank, and offers it to the supervisor once Ray has placed it.

    Actors that Ray cannot place yet stay pending: they are placed when nodes appear, and an autoscaler sees
    them. The seat of a rank that was lost is requested again.
    """

    may_wait = True
    shares_files = False

    def __init__(self, placement: Placement) -> None:
        if placement.session:
            # The program ends with the actor that started it.
            end_with(int(placement.session))
        self._ray = connect(placement.address, relays_output=True)
        # One thread for each direction, so that each keeps its order.
        self._actor_class = self._ray.remote(concurrency_groups={"down": 1, "up": 1})(RankAgent)
        self.host: str = self._ray.util.get_node_ip_address()
        self.ranks: list[RankSpec] = []
        self.start_ranks = placement.start_ranks
        self.launcher: Launcher = self
        kind = device_kind(self._ray)
        self._seats = [Seat(device) for device in placement.devices or (kind,) * placement.max_ranks]
        self._num_placed, self._is_closed = 0, False
        self._calls = Calls()
        self._supervisor: Supervisor | None = None
        # Actors that are alive or pending: without a handle, Ray ends them.
        self._actors: dict[int, Any] = {}

    def attend(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        for seat in self._seats:
            self._request(seat)
        self._calls.later(_PATIENCE_S, self._explain_waiting)

    def _request(self, seat: Seat) -> None:
        """Ask Ray for an actor; it is offered to the supervisor once it is placed."""
        if self._is_closed:
            return
        actor_class = self._actor_class.options(
            num_cpus=1,
            num_gpus=1 if seat.device == "cuda" else 0,
            scheduling_strategy="SPREAD",
            max_restarts=0,
        )
        agent = actor_class.remote([*sys.path], [*getattr(sys, "argv", [""])], os.getcwd())
        self._actors[id(agent)] = agent
        self._calls.when_done(agent.facts.remote(), lambda done: self._offer(seat, agent, done))

    def _offer(self, seat: Seat, agent: Any, done: Any) -> None:
        error = done.exception()
        if error is not None:
            self._drop(agent)
            if not self._is_closed:
                log.warn("Ray could not start a rank: %s.", first_line(error))
                self._again(seat)
            return
        self._num_placed += 1
        facts = done.result()
        place = (seat, agent, facts)
        if self._supervisor is not None and not self._is_closed:
            # Ray shows an actor only the GPU that is its own.
            device = "cuda:0" if seat.device == "cuda" else seat.device
            self._supervisor.add_rank(RankSpec(device, address=facts["address"], place=place))

    def start(self, spec: RankSpec) -> RayRank:
        place: Any = spec.place
        return RayRank(self._ray, self._calls, *place, freed=self._freed)

    def _freed(self, seat: Seat, agent: Any, code: int | None) -> None:
        """The rank of a seat has ended. An error of its code would only repeat itself."""
        self._drop(agent)
        if code is None or code < 0:
            self._again(seat)

    def _again(self, seat: Seat) -> None:
        seat.num_losses += 1
        if not self._is_closed:
            self._calls.later(seat.pause_s(), lambda: self._request(seat))

    def _drop(self, agent: Any) -> None:
        self._actors.pop(id(agent), None)
        with suppress(Exception):
            self._ray.kill(agent, no_restart=True)

    def _explain_waiting(self) -> None:
        if self._num_placed >= self.start_ranks or self._is_closed:
            return
        found = resources(self._ray)
        log.warn(
            "the run waits for %d ranks; Ray has placed %d. The cluster has %d nodes with %g CPUs and %g "
            "GPUs. Add nodes, or ask for fewer ranks.",
            self.start_ranks, self._num_placed, found["nodes"], found["cpus"], found["gpus"],
        )  # fmt: skip

    def close(self) -> None:
        self._is_closed = True
        self._calls.close()
        for agent in [*self._actors.values()]:
            self._drop(agent)


class RayRank:
    """A rank in an actor. Ray tells when the actor or its node is gone."""

    sentinel = None

    def __init__(
        self,
        ray: Any,
        calls: Calls,
        seat: Seat,
        agent: Any,
        facts: dict[str, Any],
        *,
        freed: Callable[..., object],
    ) -> None:
        self.pid: int = facts["pid"]
        self.host: str = facts["host"]
        self._ray, self._seat, self._agent, self._freed = ray, seat, agent, freed
        self._calls = calls
        self._code: int | None = None
        self.link: Any = Relay(self._deliver)
        self._collect()

    def _deliver(self, data: bytes) -> None:
        self._agent.deliver.options(concurrency_group="down").remote(data)

    def _collect(self) -> None:
        found = self._agent.collect.options(concurrency_group="up").remote()
        self._calls.when_done(found, self._collected)

    def _collected(self, done: Any) -> None:
        """Bytes have come, or the rank has ended."""
        error = done.exception()
        if error is not None:
            self.link.end(f"its Ray actor is gone: {first_line(error)}")
            return
        data, self._code = done.result()
        if self._code is not None:
            self.link.end(describe_exit(self._code))
        elif self.link.ended is None:
            self.link.feed(data)
            self._collect()

    def exit_reason(self) -> str | None:
        ended: str | None = self.link.ended
        return ended

    def kill(self) -> None:
        with suppress(Exception):
            self._ray.kill(self._agent, no_restart=True)

    def close(self) -> None:
        self.link.close()
        self._freed(self._seat, self._agent, self._code)
