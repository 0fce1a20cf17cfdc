"""The interface of rivals: run an epoch, time epochs, and record the loss."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from harness import timed


class Unavailable(Exception):
    """Raised with the reason if a rival cannot run on this machine or model."""


class Runner(ABC):
    """A model in training on a fixed list of batches."""

    clock: ClassVar[Callable[[], float]] = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.losses: list[float] = []

    @abstractmethod
    def train(self) -> float:
        """Run one epoch and return its mean loss."""

    def epoch(self) -> None:
        """Run one epoch and store its mean loss."""
        self.losses.append(self.train())

    def turn(self, epochs: int) -> list[float]:
        """Run some epochs and return the seconds of each."""
        return timed(self.epoch, epochs, clock=self.clock)

    def note(self) -> str:
        """Return a note about the result, or an empty string."""
        return ""
