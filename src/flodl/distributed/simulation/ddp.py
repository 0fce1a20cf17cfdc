"""Plain data-parallel training, for comparison: ranks meet at every step, and any loss restarts the job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from .cluster import Churn, Network, SimulatedRank
from .outcome import Outcome


def simulate_ddp(
    ranks: Sequence[SimulatedRank],
    *,
    network: Network | None = None,
    churn: Churn | None = None,
    until_ms: float,
    restart_ms: float = 60_000.0,
    save_every_ms: float | None = None,
    hang_timeout_ms: float = 600_000.0,
    seed: int = 0,
) -> Outcome:
    """Train for a while. A lost rank is replaced at once, and all continue from the last checkpoint.

    The time between checkpoints is the best one for the rate of losses, √(2 · 1 s · mean time), unless given.

    >>> two = [SimulatedRank(10.0), SimulatedRank(40.0)]
    >>> round(simulate_ddp(two, until_ms=1e6, network=Network()).goodput, 2)
    0.4
    """
    network, churn, random = network or Network(), churn or Churn(), Random(seed)
    num, jitter = len(ranks), max(rank.jitter for rank in ranks)
    # The largest of n log-normal factors, in the mean.
    slowest_ms = max(rank.ms_per_batch for rank in ranks)
    if jitter and num > 1:
        slowest_ms *= math.exp(jitter * math.sqrt(2.0 * math.log(num)) - jitter**2 / 2)
    # Gradients are reduced while the backward pass runs.
    step_ms = max(slowest_ms, network.reduce_ms(num))
    mean_ms = churn.mean_ms_between_losses / num
    saved_ms = save_every_ms or (math.inf if math.isinf(mean_ms) else math.sqrt(2.0 * 1000.0 * mean_ms))
    now_ms, steps, num_losses = 0.0, 0, 0
    while now_ms < until_ms:
        alone_ms = math.inf if math.isinf(mean_ms) else random.expovariate(1.0 / mean_ms)
        end_ms = min(until_ms, now_ms + alone_ms)
        ran_ms = end_ms - now_ms
        kept_ms = ran_ms if end_ms >= until_ms or math.isinf(saved_ms) else ran_ms // saved_ms * saved_ms
        steps += int(kept_ms / step_ms)
        now_ms = end_ms
        if now_ms < until_ms:
            num_losses += 1
            hangs = random.random() < churn.hang
            now_ms += restart_ms + network.group_ms(num) + (hang_timeout_ms if hangs else churn.detect_ms)
    speed = sum(1.0 / rank.ms_per_batch for rank in ranks)
    return Outcome(
        status="running",
        duration_ms=until_ms,
        committed_batches=steps * num,
        possible_batches=speed * until_ms,
        num_windows=steps,
        num_losses=num_losses,
        num_joins=num + num_losses,
        num_generations=1 + num_losses,
        num_repeated=0,
        num_late=0,
        anchor=1,
        window_ms=step_ms,
    )
