"""The loop of a rank: one message of the supervisor after the other."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from flodl.core import DistributedError
from flodl.distributed.coordination import Arrived, Commit, Joined, Plan, Position, Reduce, Refuse

from .ahead import AheadInbox, Settle
from .averaging import Averaging, to_bytes
from .channel import Channel
from .faults import Faults
from .inbox import Inbox
from .messages import Consensus, Donate, Donation, End, Fetch, Receive, Report, Save, Saved, Tell
from .worker import RankInfo, Trained, Worker

if TYPE_CHECKING:
    from collections.abc import Callable


class RankLoop:
    """Trains what it is asked to, and reports. `doing` and `step` say where it is if it fails."""

    def __init__(
        self,
        info: RankInfo,
        worker: Worker,
        averaging: Averaging,
        inbox: Inbox | AheadInbox,
        channel: Channel,
        faults: Faults,
    ) -> None:
        self._info, self._worker, self._averaging = info, worker, averaging
        self._inbox, self._channel, self._faults = inbox, channel, faults
        self.doing, self.step = "starting", 0
        self._num_messages = 0
        self._position = Position(0.0, 1.0)
        self._last_steps = 0
        self._free_since_s: float | None = None
        self._handlers: dict[type, tuple[str, Callable[[Any], None]]] = {
            Plan: ("training", self._train),
            Reduce: ("in a reduction", averaging.reduce),
            Commit: ("adopting a version", averaging.commit),
            Refuse: ("dropping its work", lambda _: averaging.refuse()),
            Settle: ("adopting a version", lambda _: averaging.settle()),
            Save: ("saving", self._save),
            Donate: ("donating its optimizer state", self._donate),
            Receive: ("receiving the optimizer state of another rank", self._receive),
            Fetch: ("sending the consensus", self._fetch),
            Tell: ("adopting settings", lambda message: self._worker.told(message.data)),  # type: ignore[attr-defined]
        }

    @property
    def progress(self) -> int:
        """A number that changes with each batch and each message."""
        return self._num_messages + self.step

    def run(self) -> None:
        """Take part until the supervisor ends it."""
        self._channel.send(Report(Joined(self._info.rank)))
        while True:
            self.doing = "waiting for the supervisor"
            message = self._inbox.next()
            self._num_messages += 1
            if isinstance(message, End):
                return
            self.doing, handler = self._handlers[type(message)]
            handler(message)

    def _train(self, plan: Plan) -> None:
        (number,), (lease,), ((start, per_step),) = plan.plans, plan.leases, plan.positions
        self._faults.reach("plan", plan.window)
        wait_ms = self._take_wait_ms()
        if (meet := getattr(self._worker, "meet", None)) is not None:
            meet(plan.generation, plan.window, plan.team)
        self._position = self._position.next(start=start, per_step=per_step, steps=self._last_steps)
        before, started_s = self.step, time.perf_counter()

        def should_stop() -> bool:
            self._averaging.settle()
            self._faults.reach("batch", plan.window)
            if self._inbox.stopping.is_set():
                return True
            self.step += 1
            return False

        trained = self._worker.train(lease, self._position, should_stop=should_stop)
        took_ms = 1000.0 * (time.perf_counter() - started_s)
        _check(trained, lease.batches)
        self.step, self._last_steps = before + trained.steps, trained.steps
        self._faults.reach("arrive", plan.window)
        loss = self._arrive(trained)
        event = Arrived(
            self._info.rank,
            plan.generation,
            number,
            trained.steps,
            trained.compute_ms,
            trained.delivered_ms,
            trained.fill_ms,
            wait_ms,
            loss,
        )
        extras = {"took_ms": took_ms, "metrics": trained.metrics}
        if trained.num_bytes:
            names = ("wait_ms", "reduce_ms", "num_bytes")
            extras["averaging"] = {name: getattr(trained, name) for name in names}
        self._channel.send(Report(event, extras))

    def _arrive(self, trained: Trained) -> float:
        """Return the loss to report: NaN if the weights cannot be averaged."""
        averaging = self._averaging
        averaging.settle()
        loss = trained.loss
        if math.isfinite(loss) and trained.steps and not averaging.is_finite():
            loss = math.nan
        if math.isfinite(loss):
            averaging.arrive(trained.steps)
        self._free_since_s = time.perf_counter()
        averaging.take_spent_ms()
        return loss

    def _take_wait_ms(self) -> float:
        """Return how long this rank waited for others since its last plan, without its own reductions."""
        if self._free_since_s is None:
            return 0.0
        passed_ms = 1000.0 * (time.perf_counter() - self._free_since_s)
        return max(0.0, passed_ms - self._averaging.take_spent_ms())

    def _save(self, message: Save) -> None:
        import cloudpickle  # type: ignore[import-untyped]

        self._faults.reach("save", message.point.version)
        reducer = self._averaging.reducer
        value = self._worker.save(message.point, reducer.consensus, reducer.outer_state(), message.state)
        self._channel.send(Saved(message.point.version, cloudpickle.dumps(value)))

    def _donate(self, message: Donate) -> None:
        self._faults.reach("donate", self._averaging.reducer.version)
        self._channel.send(Donation(message.to, self._worker.donate()))

    def _receive(self, message: Receive) -> None:
        if message.data is not None:
            self._worker.receive(message.data)

    def _fetch(self, message: Fetch) -> None:
        reducer = self._averaging.reducer
        flat = reducer.consensus
        dtype = str(flat.dtype).removeprefix("torch.")
        outer = {name: tensor.cpu() for name, tensor in reducer.outer_state().items()}
        self._channel.send(Consensus(reducer.version, to_bytes(flat), dtype, self._worker.donate(), outer))


def _check(trained: object, batches: int) -> None:
    if not isinstance(trained, Trained):
        raise DistributedError(f"Worker.train returned {type(trained).__name__}, expected Trained.")
    if not 0 <= trained.steps <= batches:
        raise DistributedError(
            f"Worker.train reports {trained.steps} steps of a lease of {batches} batches. "
            "Count only batches of this lease."
        )
