"""How far training has come, as one frozen value that schedules, logs and checkpoints share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Progress:
    """Count optimizer updates, samples, tokens and finished epochs; a step is one update, always.

    >>> clock = Progress().advance(samples=32).advance(samples=17).next_epoch()
    >>> clock
    Progress(step=2, samples=49, tokens=0, epoch=1)
    >>> Progress.from_dict(clock.to_dict()) == clock
    True
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if value < 0:
                raise ValueError(f"Progress.{name} is {value}; it counts from 0 and never goes back.")

    def advance(self, *, samples: int, tokens: int = 0) -> Self:
        """Give the progress after one more optimizer update over `samples` samples."""
        if samples < 0 or tokens < 0:
            raise ValueError(f"samples={samples}, tokens={tokens}: progress never goes back.")
        return replace(self, step=self.step + 1, samples=self.samples + samples, tokens=self.tokens + tokens)

    def next_epoch(self) -> Self:
        """Give the progress after the end of the current epoch."""
        return replace(self, epoch=self.epoch + 1)

    def to_dict(self) -> dict[str, int]:
        """Give the counts as plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, counts: dict[str, int]) -> Self:
        """Rebuild a progress from `to_dict`."""
        return cls(**counts)
