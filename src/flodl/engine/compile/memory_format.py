"""The memory format of images in a compiled step: both are compiled, and the faster one is kept.

The worker process measures them first. If one is clearly faster, training does not have to load, warm up and
measure both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..device.tensors import is_conv_weight
from ..program.program import StepBody

Layout = Literal["as given", "channels last"]

# By default torch's compiler decides by a heuristic; these options force each choice.
LAYOUT_OPTIONS: dict[Layout | None, dict[str, Any]] = {
    None: {},
    "as given": {"layout_optimization": False},
    "channels last": {"layout_optimization": True, "force_layout_optimization": True},
}
ROUNDS = 5
# A smaller gain may be chance, measured during training on the same device.
_CLEARLY = 1.05


@dataclass(frozen=True)
class LayoutChoice:
    """The layout that was measured fastest, and the seconds that each one took."""

    layout: Layout | None
    times_s: Mapping[Layout | None, float]
    where: str = ""
    # The compiler's error for the other one, if this is the only one that it can compile.
    failure: str = ""

    @property
    def is_clearly_faster(self) -> bool:
        """Whether the fastest one won by more than chance.

        >>> times = [{"as given": 1.0, "channels last": seconds} for seconds in (1.04, 1.06)]
        >>> [LayoutChoice("as given", each).is_clearly_faster for each in times]
        [False, True]
        """
        others = [seconds for layout, seconds in self.times_s.items() if layout != self.layout]
        return bool(self.failure or (others and min(others) > _CLEARLY * self.times_s[self.layout]))

    @property
    def summary(self) -> str:
        """The choice and the measured times, for the report.

        >>> times_s = {"as given": 0.0012, "channels last": 0.002}
        >>> LayoutChoice("as given", times_s, where="in a worker").summary
        'images as given (as given 1.200 ms, channels last 2.000 ms; measured in a worker)'
        >>> LayoutChoice("as given", {}, failure="channels last cannot be compiled: too large").summary
        'images as given (channels last cannot be compiled: too large)'
        """
        if self.failure:
            return f"images {self.layout} ({self.failure})"
        times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in self.times_s.items())
        return f"images {self.layout} ({times}{self.where and f'; measured {self.where}'})"


def candidate_layouts(body: StepBody) -> tuple[Layout | None, ...]:
    """Return the layouts to try: two for a model with convolution weights, else only the default.

    >>> from types import SimpleNamespace
    >>> from torch import nn
    >>> candidate_layouts(SimpleNamespace(parameters=list(nn.Conv2d(3, 8, 3).parameters())))
    ('as given', 'channels last')
    """
    return ("as given", "channels last") if any(map(is_conv_weight, body.parameters)) else (None,)


def pick_fastest(runs: Mapping[Layout | None, Callable[[], float]]) -> LayoutChoice:
    """Run each one a few times in turns, and return the one with the shortest time."""
    times_s: dict[Layout | None, float] = {}
    for _ in range(ROUNDS if len(runs) > 1 else 0):
        for layout, run in runs.items():
            times_s[layout] = min(run(), times_s.get(layout, float("inf")))
    return fastest(times_s) if times_s else LayoutChoice(next(iter(runs)), {})


def fastest(times_s: Mapping[Layout | None, float]) -> LayoutChoice:
    """Return the layout with the shortest time.

    >>> fastest({"as given": 0.002, "channels last": 0.001}).layout
    'channels last'
    """
    return LayoutChoice(min(times_s, key=times_s.__getitem__), times_s)
