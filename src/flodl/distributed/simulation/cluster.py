"""What is simulated: ranks, how they are lost and come back, and what communication costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """The speed of a rank. `throttle` lists (from_ms, factor): from then on, a batch takes that much longer.

    `drift` is the share by which a batch takes longer after each hour. The time of each plan varies by a
    log-normal factor of mean 1 and standard deviation `jitter`.
    """

    ms_per_batch: float
    jitter: float = 0.0
    throttle: tuple[tuple[float, float], ...] = ()
    drift: float = 0.0
    joins_ms: float = 0.0

    def ms_at(self, now_ms: float) -> float:
        """Return the mean time of a batch.

        >>> SimulatedRank(10.0, throttle=((1000.0, 4.0), (2000.0, 1.0))).ms_at(1500.0)
        40.0
        """
        factor = 1.0
        for since_ms, each in self.throttle:
            if now_ms >= since_ms:
                factor = each
        return self.ms_per_batch * factor * (1.0 + self.drift * now_ms / 3_600_000.0)


@dataclass(frozen=True, slots=True)
class Network:
    """The cost of a reduction of `num_bytes` among n ranks, and of forming a process group.

    >>> round(Network(latency_ms=1.0, num_bytes=125_000_000, gbit_per_s=10.0).reduce_ms(8), 1)
    181.0
    """

    latency_ms: float = 0.5
    num_bytes: float = 0.0
    gbit_per_s: float = 10.0
    rebuild_ms: float = 20.0
    rebuild_ms_per_rank: float = 0.0
    # What the supervisor needs for each message that it receives or sends; others wait in a queue.
    message_ms: float = 0.0

    def reduce_ms(self, num_ranks: int) -> float:
        """A ring moves all bytes nearly twice; a tree of control messages adds its latency."""
        if num_ranks < 2:
            return 0.0
        per_byte_ms = 8.0 / (self.gbit_per_s * 1e6)
        moved = 2.0 * self.num_bytes * (num_ranks - 1) / num_ranks
        return 2.0 * self.latency_ms * math.log2(num_ranks) + moved * per_byte_ms

    def group_ms(self, num_ranks: int) -> float:
        return self.rebuild_ms + self.rebuild_ms_per_rank * num_ranks


@dataclass(frozen=True, slots=True)
class Churn:
    """How often each rank is lost, and when it comes back.

    Of the losses, the share `hang` is silent: connections stay open, and only a deadline finds it. The others
    are noticed after `detect_ms`, because a process ended.
    """

    mean_ms_between_losses: float = math.inf
    hang: float = 0.0
    detect_ms: float = 50.0
    back_after_ms: float = 60_000.0

    def next_loss_ms(self, random: Random) -> float:
        if math.isinf(self.mean_ms_between_losses):
            return math.inf
        return random.expovariate(1.0 / self.mean_ms_between_losses)


def cluster(
    num_ranks: int, *, fastest_ms: float = 10.0, ratio: float = 1.0, jitter: float = 0.0
) -> list[SimulatedRank]:
    """Return ranks whose speeds are spread evenly from `fastest_ms` to `ratio` times slower.

    >>> [rank.ms_per_batch for rank in cluster(3, fastest_ms=10.0, ratio=8.0)]
    [10.0, 17.77..., 80.0]
    """
    ranks = []
    for index in range(num_ranks):
        share = index / (num_ranks - 1) if num_ranks > 1 else 0.0
        speed = 1.0 + share * (1.0 / ratio - 1.0)
        ranks.append(SimulatedRank(fastest_ms / speed, jitter))
    return ranks
