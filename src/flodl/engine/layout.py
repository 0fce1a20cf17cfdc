"""How images lie in memory inside a compiled step: both ways are compiled, and the faster one stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from .body import StepBody

Layout = Literal["as given", "channels last"]

# torch's compiler decides by a rule of thumb; here it is told, so that both can be measured.
OPTIONS: dict[Layout | None, dict[str, Any]] = {
    None: {},
    "as given": {"layout_optimization": False},
    "channels last": {"layout_optimization": True, "force_layout_optimization": True},
}
_ROUNDS = 5


def layouts_for(body: StepBody) -> tuple[Layout | None, ...]:
    """Give the layouts worth trying: two for a model with the weights of convolutions, else none to choose.

    >>> from types import SimpleNamespace
    >>> from torch import nn
    >>> layouts_for(SimpleNamespace(parameters=list(nn.Conv2d(3, 8, 3).parameters())))
    ('as given', 'channels last')
    """
    has_images = any(parameter.dim() in (4, 5) for parameter in body.parameters)
    return ("as given", "channels last") if has_images else (None,)


def fastest(
    runs: Mapping[Layout | None, Callable[[], float]],
) -> tuple[Layout | None, dict[Layout | None, float]]:
    """Let each take its turn a few times, and give the one with the shortest time, and all of those times."""
    taken: dict[Layout | None, float] = {}
    for _ in range(_ROUNDS if len(runs) > 1 else 0):
        for layout, run in runs.items():
            taken[layout] = min(run(), taken.get(layout, float("inf")))
    return min(taken, key=taken.__getitem__) if taken else next(iter(runs)), taken
