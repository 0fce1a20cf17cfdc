"""Runs a coordinator with simulated ranks. Time is simulated: only events cost computing time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from random import Random

from flodl.distributed.coordination import (
    Arrived,
    Command,
    Commit,
    Coordinator,
    CoordinatorSettings,
    Event,
    Evict,
    Failed,
    Joined,
    Lost,
    Plan,
    Rebuild,
    Reduce,
    Reduced,
    Tick,
)
from flodl.distributed.coverage import Epochs

from .cluster import Churn, Network, SimulatedRank
from .outcome import Outcome

_ARRIVE, _REDUCED, _FAILED, _LOSE, _NOTICE, _JOIN, _THROTTLE = range(7)
_TICK = Tick()


def simulate(
    ranks: Sequence[SimulatedRank],
    epochs: Epochs,
    settings: CoordinatorSettings | None = None,
    *,
    network: Network | None = None,
    churn: Churn | None = None,
    until_ms: float = math.inf,
    warm_ms: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Train until all epochs are committed or the time is over. Numbers count from `warm_ms` on.

    >>> two = [SimulatedRank(10.0), SimulatedRank(40.0)]
    >>> outcome = simulate(two, Epochs(num_samples=100_000, batch_size=10))
    >>> outcome.status, outcome.committed_batches, outcome.goodput > 0.98
    ('finished', 10000, True)
    """
    simulation = _Simulation(
        ranks, Coordinator(epochs, settings), network or Network(), churn or Churn(), seed
    )
    return simulation.run(until_ms, warm_ms)


class _Simulation:
    def __init__(
        self,
        ranks: Sequence[SimulatedRank],
        coordinator: Coordinator,
        network: Network,
        churn: Churn,
        seed: int,
    ) -> None:
        self.ranks, self.coordinator, self.network, self.churn = ranks, coordinator, network, churn
        self.random = Random(seed)
        self.queue: list[tuple[float, int, int, int, int]] = []
        self.num_queued = 0
        # How often each rank was started; what an earlier life scheduled does not happen.
        self.lives = [0] * len(ranks)
        self.is_up = [False] * len(ranks)
        self.reduce: Reduce | None = None
        self.meter = _Meter(ranks)
        self.reduce_lives: dict[int, int] = {}
        self.rebuilding_ms = self.reduce_since_ms = 0.0
        # Until when the supervisor is busy with messages.
        self.busy_ms = 0.0

    def schedule(self, when_ms: float, kind: int, rank: int, value: int = 0) -> None:
        self.num_queued += 1
        heapq.heappush(self.queue, (when_ms, self.num_queued, kind, rank, value))

    def run(self, until_ms: float, warm_ms: float) -> Outcome:
        for rank, each in enumerate(self.ranks):
            self.schedule(each.joins_ms, _JOIN, rank)
            for since_ms, _ in each.throttle:
                self.schedule(since_ms, _THROTTLE, rank)
        coordinator, queue = self.coordinator, self.queue
        now_ms = 0.0
        self.meter.warm_ms = warm_ms
        while coordinator.status in ("waiting", "running"):
            wake_ms = coordinator.wake_ms
            next_ms = queue[0][0] if queue else math.inf
            now_ms = max(now_ms, min(wake_ms, next_ms), self.busy_ms)
            if now_ms > until_ms:
                now_ms = until_ms
                break
            if wake_ms < next_ms:
                alive = tuple([rank for rank in coordinator.suspects(now_ms) if self.is_up[rank]])
                self.tell(now_ms, Tick(alive) if alive else _TICK)
            elif queue:
                _, _, kind, rank, value = heapq.heappop(queue)
                self.happen(now_ms, kind, rank, value)
        return self.meter.outcome(coordinator)

    def happen(self, now_ms: float, kind: int, rank: int, value: int) -> None:
        if kind == _ARRIVE:
            if value in self.plans(rank):
                self.arrive(now_ms, rank, value)
        elif kind == _REDUCED:
            self.finish_reduction(now_ms, rank, value)
        elif kind == _FAILED:
            self.fail(now_ms, rank, value)
        elif kind == _LOSE:
            if value == self.lives[rank] and self.is_up[rank]:
                self.lose(now_ms, rank)
        elif kind == _NOTICE:
            self.tell(now_ms, Lost(rank, "its process ended"))
        elif kind == _JOIN:
            self.join(now_ms, rank)
        elif kind == _THROTTLE:
            self.meter.measure(now_ms, rank)

    def plans(self, rank: int) -> dict[int, tuple[int, float, int]]:
        return self.meter.plans[rank]

    def arrive(self, now_ms: float, rank: int, plan: int) -> None:
        steps, took_ms, generation = self.meter.plans[rank].pop(plan)
        self.tell(now_ms, Arrived(rank, generation, plan, steps, took_ms))

    def join(self, now_ms: float, rank: int) -> None:
        if self.coordinator.run.membership.is_known(rank):
            # Its earlier life was not noticed yet.
            self.tell(now_ms, Lost(rank, "its process was restarted"))
        self.is_up[rank] = True
        self.lives[rank] += 1
        self.meter.up(now_ms, rank)
        self.schedule(now_ms + self.churn.next_loss_ms(self.random), _LOSE, rank, self.lives[rank])
        self.tell(now_ms, Joined(rank))

    def lose(self, now_ms: float, rank: int) -> None:
        self.is_up[rank] = False
        self.lives[rank] += 1
        self.meter.down(now_ms, rank)
        # A process that hangs is restarted once it was evicted.
        if self.random.random() >= self.churn.hang:
            self.schedule(now_ms + self.churn.detect_ms, _NOTICE, rank)
            self.schedule(now_ms + self.churn.back_after_ms, _JOIN, rank)
            self.break_reduction(now_ms, rank)

    def evict(self, now_ms: float, rank: int) -> None:
        if self.is_up[rank]:
            self.is_up[rank] = False
            self.lives[rank] += 1
            self.meter.down(now_ms, rank)
        self.schedule(now_ms + self.churn.back_after_ms, _JOIN, rank)
        self.break_reduction(now_ms, rank)

    def break_reduction(self, now_ms: float, rank: int) -> None:
        found = self.reduce
        if found is not None and rank in self.reduce_lives:
            self.schedule(now_ms + self.churn.detect_ms, _FAILED, found.generation, found.window)

    def tell(self, now_ms: float, event: Event) -> None:
        commands = self.coordinator.handle(now_ms, event)
        if self.network.message_ms:
            num = sum(map(num_messages, commands)) + (len(event.ranks) if isinstance(event, Reduced) else 1)
            now_ms = self.busy_ms = max(now_ms, self.busy_ms) + num * self.network.message_ms
        for command in commands:
            self.obey(now_ms, command)

    def obey(self, now_ms: float, command: Command) -> None:
        if isinstance(command, Plan):
            self.train(now_ms, command)
        elif isinstance(command, Reduce):
            self.start_reduction(now_ms, command)
        elif isinstance(command, Rebuild):
            self.rebuilding_ms = self.network.group_ms(len(command.members))
        elif isinstance(command, Commit):
            self.meter.commit(now_ms, command)
        elif isinstance(command, Evict):
            self.evict(now_ms, command.rank)

    def train(self, now_ms: float, command: Plan) -> None:
        generation = command.generation
        for plan, lease in zip(command.plans, command.leases):
            rank = lease.rank
            if not self.is_up[rank]:
                continue
            found = self.ranks[rank]
            took_ms = lease.batches * found.ms_at(now_ms)
            if found.jitter:
                took_ms *= math.exp(found.jitter * self.random.gauss(0.0, 1.0) - found.jitter**2 / 2)
            self.meter.plans[rank][plan] = (lease.batches, took_ms, generation)
            self.num_queued += 1
            heapq.heappush(self.queue, (now_ms + took_ms, self.num_queued, _ARRIVE, rank, plan))

    def start_reduction(self, now_ms: float, command: Reduce) -> None:
        self.reduce, self.reduce_since_ms = command, now_ms
        self.meter.num["repeated"] += command.attempt > 0
        self.reduce_lives = {rank: self.lives[rank] for rank in command.members}
        took_ms = self.network.reduce_ms(len(command.members)) + self.rebuilding_ms
        self.rebuilding_ms = 0.0
        self.schedule(now_ms + min(took_ms, command.timeout_ms), _REDUCED, command.generation, command.window)
        self.schedule(now_ms + command.timeout_ms, _FAILED, command.generation, command.window)

    def finish_reduction(self, now_ms: float, generation: int, window: int) -> None:
        found = self.reduce
        if found is None or found.window != window or found.generation != generation:
            return
        if any(self.lives[rank] != life or not self.is_up[rank] for rank, life in self.reduce_lives.items()):
            return
        self.reduce = None
        took_ms = now_ms - self.reduce_since_ms
        self.tell(now_ms, Reduced(found.members, window, generation, took_ms, divergence=0.01))

    def fail(self, now_ms: float, generation: int, window: int) -> None:
        """A member ended, or the reduction timed out: all others get an error."""
        found = self.reduce
        if found is None or found.window != window or found.generation != generation:
            return
        self.reduce = None
        for rank in found.members:
            if self.is_up[rank] and self.lives[rank] == self.reduce_lives[rank]:
                self.tell(now_ms, Failed(rank, window, generation, "connection closed by peer"))


def num_messages(command: Command) -> int:
    """Return how many messages carry out a command."""
    if isinstance(command, Plan):
        return len(command.leases)
    return len(command.members) if isinstance(command, Reduce | Commit) else 1


class _Meter:
    """Counts what was committed, and what the present ranks could have trained."""

    def __init__(self, ranks: Sequence[SimulatedRank]) -> None:
        self.ranks = ranks
        self.plans: list[dict[int, tuple[int, float, int]]] = [{} for _ in ranks]
        # Batches per millisecond of each rank that is present.
        self.speeds: dict[int, float] = {}
        self.drifting = [rank for rank, each in enumerate(ranks) if each.drift]
        self.since_ms = self.started_ms = self.warm_ms = 0.0
        self.speed = self.possible = 0.0
        # Batches and time at the first commit that counts, and at the last one.
        self.committed = self.committed_before = 0
        self.duration_ms = self.possible_until = 0.0
        self.num = {"losses": 0, "joins": 0, "repeated": 0, "late": 0}
        self.reasons: list[str] = []

    def pass_time(self, now_ms: float) -> None:
        self.possible += self.speed * (now_ms - self.since_ms)
        self.since_ms = now_ms

    def measure(self, now_ms: float, rank: int) -> None:
        """The speed of a rank changed."""
        if rank in self.speeds:
            self.pass_time(now_ms)
            self.speed -= self.speeds[rank]
            self.speeds[rank] = 1.0 / self.ranks[rank].ms_at(now_ms)
            self.speed += self.speeds[rank]

    def up(self, now_ms: float, rank: int) -> None:
        self.speeds.setdefault(rank, 0.0)
        self.measure(now_ms, rank)
        self.plans[rank].clear()
        self.num["joins"] += 1

    def down(self, now_ms: float, rank: int) -> None:
        self.pass_time(now_ms)
        self.speed -= self.speeds.pop(rank, 0.0)
        self.plans[rank].clear()
        self.num["losses"] += 1

    def commit(self, now_ms: float, command: Commit) -> None:
        """Measure from commit to commit: at both ends, the same share of a window is in flight."""
        self.pass_time(now_ms)
        self.committed += command.batches
        self.num["late"] += len(command.late)
        self.reasons += command.reasons
        if self.warm_ms and now_ms >= self.warm_ms:
            self.warm_ms = self.possible = 0.0
            self.started_ms, self.committed_before = now_ms, self.committed
        self.duration_ms, self.possible_until = now_ms - self.started_ms, self.possible
        for rank in self.drifting:
            self.measure(now_ms, rank)

    def outcome(self, coordinator: Coordinator) -> Outcome:
        run = coordinator.run
        return Outcome(
            status=coordinator.status,
            duration_ms=self.duration_ms,
            committed_batches=self.committed - self.committed_before,
            possible_batches=self.possible_until,
            num_windows=coordinator.version,
            num_losses=self.num["losses"],
            num_joins=self.num["joins"],
            num_generations=run.membership.generation,
            num_repeated=self.num["repeated"],
            num_late=self.num["late"],
            anchor=run.elche.anchor,
            window_ms=run.elche.window_ms,
            reasons=tuple(self.reasons),
        )
