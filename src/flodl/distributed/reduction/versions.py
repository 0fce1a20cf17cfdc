"""What a rank holds: versions of the consensus, and snapshots of its own weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .flat_state import FlatState

NO_VERSION = -1
MOST_SPARES = 3


@dataclass
class Version:
    """A consensus: its number, the flat weights, the integers, and the momentum of the outer optimizer."""

    number: int
    flat: Tensor
    integers: Tensor
    momentum: Tensor | None


@dataclass(eq=False)
class Snapshot:
    """The weights of a rank after this number of steps since its base version."""

    steps: int
    flat: Tensor
    integers: Tensor


class Spares:
    """Flat vectors that are free: allocating one touches all of its memory, which takes as long as a copy."""

    def __init__(self, state: FlatState) -> None:
        self._state = state
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        return self._free.pop() if self._free else self._state.empty()

    def give(self, *vectors: Tensor) -> None:
        self._free = [*self._free, *vectors][:MOST_SPARES]
