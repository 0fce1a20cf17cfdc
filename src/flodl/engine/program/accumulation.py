"""The accumulation window: its position, and the weight of each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Window:
    """The micro-batches of one update, weighted by samples, so that together they equal one large batch.

    Later sizes are unknown, so each is weighted as if all were as large as the first; `correction` accounts
    for those that were not.

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
        """Add the samples of the next micro-batch."""
        if self.position == 0:
            self.samples = self.first_samples = 0
        self.samples += samples
        self.first_samples = self.first_samples or samples

    def share(self, samples: int) -> float:
        """Return the weight of a micro-batch with this many samples."""
        if self.accumulate == 1:
            return 1.0
        return samples / (self.first_samples * self.accumulate) if samples else 0.0

    def leave_out(self, samples: int) -> None:
        """Remove a micro-batch that failed."""
        self.samples -= samples

    def close(self) -> None:
        """Start a new window."""
        self.position = self.samples = self.first_samples = 0

    @property
    def is_full(self) -> bool:
        """Whether the update is due."""
        return self.position >= self.accumulate

    @property
    def correction(self) -> float:
        """The factor for the gradients, because not all micro-batches were as large as the first."""
        expected = self.first_samples * self.accumulate
        return 1.0 if self.samples in (0, expected) else expected / self.samples
