"""The settings of `ElChe`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from flodl.core import DistributedError
from flodl.core.integers import is_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class CadenceSettings:
    """How `ElChe` measures speeds and chooses counts.

    >>> CadenceSettings(anchor=4, max_batches={2: 16}).max_batches[2]
    16
    >>> CadenceSettings(anchor=0)
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: at 'anchor': expected an integer of at least 1, got 0.
    """

    # Batches of the slowest rank in the first window, and the most it may ever get.
    anchor: int = 10
    max_anchor: int = 1000
    # The share of a window that the reduction may take before the window grows, and 0.4 of it while replicas
    # hardly diverge; False fixes the anchor.
    overhead_target: float = 0.05
    growth: bool = True
    # Reports that a mean speed covers, and missed reports after which a speed is forgotten.
    num_reports: int = 5
    # A count changes only if it is off by more than this share; if it is too large, all other ranks wait.
    dead_zone: float = 0.02
    # Ranks within this share of the pace set it together; another rank takes over if slower by `challenge`.
    cohort: float = 0.15
    challenge: float = 0.10
    # The largest ratio between two speeds.
    max_ratio: float = 64.0
    # The most batches of a rank in one window, for example because of its memory.
    max_batches: Mapping[int, int] = field(default_factory=dict)
    # A rank rests if the window would be shorter by more than this share without it.
    rest_margin: float = 0.10

    def __post_init__(self) -> None:
        for name in ("anchor", "max_anchor", "num_reports"):
            if not is_integer(getattr(self, name), at_least=1):
                raise DistributedError(
                    f"expected an integer of at least 1, got {getattr(self, name)!r}.", path=name
                )
        for name in ("overhead_target", "dead_zone", "cohort", "challenge", "rest_margin"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise DistributedError(f"expected a share from 0 to below 1, got {value!r}.", path=name)
        if not (self.max_ratio >= 1.0 and math.isfinite(self.max_ratio)):
            raise DistributedError(
                f"expected a number of at least 1, got {self.max_ratio!r}.", path="max_ratio"
            )
        if self.max_anchor < self.anchor:
            raise DistributedError(
                f"expected at least the anchor, {self.anchor}, got {self.max_anchor}.", path="max_anchor"
            )
        for rank, most in self.max_batches.items():
            if not is_integer(most, at_least=1):
                raise DistributedError(
                    f"expected an integer of at least 1 for rank {rank}, got {most!r}.", path="max_batches"
                )
