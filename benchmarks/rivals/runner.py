"""What every rival can do: run an epoch, time some, and tell the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

from harness import timed


class Unavailable(Exception):
    """A rival that does not run here or for this model; says why."""


class Runner(ABC):
    """A model in training on a fixed list of batches."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    @abstractmethod
    def train(self) -> float:
        """Run one epoch and give its mean loss."""

    def epoch(self) -> None:
        """Run one epoch and keep its mean loss."""
        self.losses.append(self.train())

    def turn(self, epochs: int) -> list[float]:
        """Run some epochs and give the seconds of each."""
        return timed(self.epoch, epochs)

    def note(self) -> str:
        """What a reader of the number should know; empty where there is nothing."""
        return ""
