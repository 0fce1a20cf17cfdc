"""How images lie in memory inside a compiled step: both ways are compiled, and the faster one stays.

The process that compiles beside the training measures them first. Where it finds one to be clearly faster,
the training need not wait until both are loaded, run for the first time and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..device.tensors import is_conv_weight
from ..program.program import StepBody

Layout = Literal["as given", "channels last"]

# torch's compiler decides by a rule of thumb; here it is told, so that both can be measured.
LAYOUT_OPTIONS: dict[Layout | None, dict[str, Any]] = {
    None: {},
    "as given": {"layout_optimization": False},
    "channels last": {"layout_optimization": True, "force_layout_optimization": True},
}
_ROUNDS = 5
# Less than that, measured beside a training that is busy, may be chance.
_CLEARLY = 1.05


@dataclass(frozen=True)
class LayoutChoice:
    """The layout that was measured to be the fastest, and the seconds that each of them took."""

    layout: Layout | None
    times_s: Mapping[Layout | None, float]
    where: str = ""
    # What the compiler said of the other one, where this is the only one that it can compile.
    failure: str = ""

    @property
    def is_clearly_faster(self) -> bool:
        """Whether the fastest is so by more than chance.

        >>> times = [{"as given": 1.0, "channels last": seconds} for seconds in (1.04, 1.06)]
        >>> [LayoutChoice("as given", each).is_clearly_faster for each in times]
        [False, True]
        """
        others = [seconds for layout, seconds in self.times_s.items() if layout != self.layout]
        return bool(self.failure or (others and min(others) > _CLEARLY * self.times_s[self.layout]))

    @property
    def summary(self) -> str:
        """What was chosen, and by what times.

        >>> LayoutChoice("as given", {"as given": 0.0012, "channels last": 0.002}, where="beside").summary
        'images as given (as given 1.200 ms, channels last 2.000 ms; measured beside)'
        >>> LayoutChoice("as given", {}, failure="channels last cannot be compiled: too large").summary
        'images as given (channels last cannot be compiled: too large)'
        """
        if self.failure:
            return f"images {self.layout} ({self.failure})"
        times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in self.times_s.items())
        return f"images {self.layout} ({times}{self.where and f'; measured {self.where}'})"


def candidate_layouts(body: StepBody) -> tuple[Layout | None, ...]:
    """Give the layouts worth trying: two for a model with the weights of convolutions, else none to choose.

    >>> from types import SimpleNamespace
    >>> from torch import nn
    >>> candidate_layouts(SimpleNamespace(parameters=list(nn.Conv2d(3, 8, 3).parameters())))
    ('as given', 'channels last')
    """
    return ("as given", "channels last") if any(map(is_conv_weight, body.parameters)) else (None,)


def pick_fastest(runs: Mapping[Layout | None, Callable[[], float]]) -> LayoutChoice:
    """Let each take its turn a few times, and give the one with the shortest time."""
    taken: dict[Layout | None, float] = {}
    for _ in range(_ROUNDS if len(runs) > 1 else 0):
        for layout, run in runs.items():
            taken[layout] = min(run(), taken.get(layout, float("inf")))
    return LayoutChoice(min(taken, key=taken.__getitem__) if taken else next(iter(runs)), taken)
