"""What trains on a rank: the interface that the loop of a rank calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flodl.distributed.coordination import Position, SavePoint
from flodl.distributed.coverage import Lease

if TYPE_CHECKING:
    from torch import Tensor

    from flodl.distributed.reduction import FlatState


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Who a rank is; the factory of its worker receives it."""

    rank: int
    device: str
    host: str
    # The number of ranks at the start of the run.
    num_ranks: int = 1
    # Where ranks find each other.
    store: tuple[str, int] | None = None
    # The address of its host at which the rank listens for others.
    address: str = "127.0.0.1"


@dataclass(slots=True)
class Trained:
    """What a worker trained of a lease. `metrics` has weighted sums: name → (sum, weight).

    `delivered_ms` includes waiting for data; 0 means that it was not measured. `fill_ms` is the fixed cost of
    starting to train. A loss that is not finite excludes this work from the mean. A worker that exchanges
    gradients meanwhile has its costs in `wait_ms`, `reduce_ms` and `num_bytes`.
    """

    steps: int
    compute_ms: float
    delivered_ms: float = 0.0
    fill_ms: float = 0.0
    loss: float = 0.0
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    wait_ms: float = 0.0
    reduce_ms: float = 0.0
    num_bytes: int = 0


class Worker(Protocol):
    """Trains leases of sample positions on one replica of the model.

    A worker that continues from a save point with the state of an outer optimizer has it as `outer_state`.
    A worker that trains together with others has a method `meet(generation, window, leases)`, called before a
    plan with the leases of all ranks in it.
    A worker to which the caller talks (`Supervisor.tell`) has a method `told(data)`, called between plans.
    """

    state: FlatState

    def train(self, lease: Lease, position: Position, *, should_stop: Callable[[], bool]) -> Trained:
        """Train the batches of the lease in order.

        Call `should_stop` before each batch, and return what was trained so far if it is true. Ranks that
        train ahead receive a new version inside this call: the weights change in place.
        """
        ...

    def donate(self) -> bytes:
        """Return what a rank that joins needs in addition to the weights, such as the optimizer state."""
        ...

    def receive(self, donated: bytes) -> None:
        """Adopt what another rank donated."""
        ...

    def save(
        self, point: SavePoint, consensus: Tensor, outer: dict[str, Any], coordinator: dict[str, Any]
    ) -> object:
        """Save this version together with the state of the coordinator; return a report for the supervisor.

        `consensus` is flat, in the order of `state`. The weights of the model may be ahead of it.
        """
        ...


WorkerFactory = Callable[[RankInfo], Worker]
