"""A window of accumulation: how far it has come, and what each micro-batch weighs in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Window:
    """The micro-batches that make one update, weighed by samples, so that they mean one big batch.

    The sizes to come are unknown, so each is weighed as if all were as large as the first; `correction`
    makes up for those that were not.

    >>> window = Window(accumulate=2)
    >>> for samples in (4, 2):
    ...     window.count(samples)
    ...     window.position += 1
    >>> window.share(4), window.share(2), window.correction * (window.share(4) + window.share(2))
    (0.5, 0.25, 1.0)
    """

    accumulate: int
    position: int = 0
    samples: int = 0
    first_samples: int = 0

    def count(self, samples: int) -> None:
        """Take in the samples of the next micro-batch."""
        if self.position == 0:
            self.samples = self.first_samples = 0
        self.samples += samples
        self.first_samples = self.first_samples or samples

    def share(self, samples: int) -> float:
        """Give what a micro-batch of so many samples weighs."""
        if self.accumulate == 1:
            return 1.0
        return samples / (self.first_samples * self.accumulate) if samples else 0.0

    def leave_out(self, samples: int) -> None:
        """Take back a micro-batch that came to nothing."""
        self.samples -= samples

    def close(self) -> None:
        """Begin anew."""
        self.position = self.samples = self.first_samples = 0

    @property
    def is_full(self) -> bool:
        """Whether the update is due."""
        return self.position >= self.accumulate

    @property
    def correction(self) -> float:
        """What to multiply the gradients with, because not all were as large as the first."""
        expected = self.first_samples * self.accumulate
        return 1.0 if self.samples in (0, expected) else expected / self.samples
