"""What a rank holds: a version of the consensus, and snapshots of its own weights."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from .flat_state import FlatState
from .vectors import add_local

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
        # A reduction in the background uses them at the same time as `Reducer.capture`.
        self._lock = Lock()

    def take(self) -> Tensor:
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._state.empty()

    def give(self, *vectors: Tensor) -> None:
        with self._lock:
            self._free.extend(vectors)
            if len(self._free) > MOST_SPARES:
                if self._state.device.type == "cuda":
                    # Another stream may still use the memory that is released.
                    torch.cuda.synchronize(self._state.device)
                del self._free[MOST_SPARES:]


class Snapshots:
    """What a rank can contribute: its weights after numbers of steps since its base version."""

    def __init__(self, state: FlatState, spares: Spares) -> None:
        self._state, self._spares = state, spares
        self._kept: list[Snapshot] = []

    @property
    def steps(self) -> list[int]:
        return [snapshot.steps for snapshot in self._kept]

    def capture(self, steps: int) -> Snapshot:
        """Copy the current weights."""
        flat = self._state.read(self._spares.take())
        snapshot = Snapshot(steps, flat, self._state.read_integers())
        self._kept.append(snapshot)
        return snapshot

    def find(self, steps: int) -> Snapshot | None:
        return next((snapshot for snapshot in self._kept if snapshot.steps == steps), None)

    def clear(self) -> None:
        self._spares.give(*[snapshot.flat for snapshot in self._kept])
        self._kept = []

    def rebase(self, contributed: Snapshot, new: Version | None) -> None:
        """Keep those after a contribution, and move them to the new version, if it is not their own."""
        earlier = [snapshot for snapshot in self._kept if snapshot.steps <= contributed.steps]
        self._kept = [snapshot for snapshot in self._kept if snapshot.steps > contributed.steps]
        for snapshot in self._kept:
            snapshot.steps -= contributed.steps
            if new is not None:
                self.move(snapshot.flat, snapshot.integers, contributed, new)
        self._spares.give(*[snapshot.flat for snapshot in earlier])

    def move(self, flat: Tensor, integers: Tensor, contributed: Snapshot, new: Version) -> None:
        """Move weights that were trained since a contribution to a new version, in place.

        Buffers that changed since keep their values: a running variance plus a difference could be negative.
        """
        num = self._state.num_parameters
        add_local(flat[:num], new.flat[:num], contributed.flat[:num])
        buffers = flat[num:]
        torch.where(buffers == contributed.flat[num:], new.flat[num:], buffers, out=buffers)
        integers += new.integers - contributed.integers
