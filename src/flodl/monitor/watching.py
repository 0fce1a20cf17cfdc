"""What can be told about a model or a training step that is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flodl.core.errors import PictureError
from flodl.core.files import write_atomic

from .events import Event

PICTURE = "graph.svg"


def describe(model: Any, run_dir: Path) -> Iterator[Event]:
    """Tell what a model is: its name, its size, and for a graph its hash and its picture."""
    parameters = list(model.parameters())
    sizes = {
        "total": sum(parameter.numel() for parameter in parameters),
        "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    }
    data = {
        "label": getattr(model, "label", None) or type(model).__name__,
        "parameters": {**sizes, "frozen": sizes["total"] - sizes["trainable"]},
        "device": str(parameters[0].device) if parameters else "cpu",
    }
    if hasattr(model, "structural_hash"):
        data["hash"] = str(model.structural_hash)
    if hasattr(model, "svg"):
        try:
            write_atomic(run_dir / PICTURE, _drawn(model))
            data["path"] = PICTURE
        except (PictureError, OSError) as error:
            yield Event("alert", {"message": f"the model is not drawn: {error}", "level": "info"})
    yield Event("graph", data)


def draw_profile(model: Any, run_dir: Path) -> None:
    """Draw a watched graph again with its times, if it was profiled meanwhile."""
    if hasattr(model, "svg_with_profile") and run_dir.is_dir():
        with contextlib.suppress(PictureError, OSError):
            write_atomic(run_dir / PICTURE, str(model.svg_with_profile()))


def _drawn(model: Any) -> str:
    try:
        return str(model.svg_with_profile())
    except PictureError:  # it was not profiled
        return str(model.svg())


class WatchedStep:
    """Tell the decisions of a `TrainStep`, each once, whenever `news` is asked."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self._num_told = 0
        self._told: tuple[Any, ...] | None = None

    def news(self) -> Iterator[Event]:
        """Give the decisions since the last call, and the tier with its gain where it has changed."""
        report = self._step.report()
        for event in report.events[self._num_told :]:
            data = {"tier": report.tier, "what": event.kind, "reason": event.reason, "step": event.step}
            yield Event("tier", data)
        self._num_told = len(report.events)
        facts = (report.tier, report.reason)
        if facts != self._told:
            self._told = facts
            measured = {"gain": report.gain, "eager_step_s": report.eager_step_s, "step_s": report.step_s}
            known = {name: value for name, value in measured.items() if value is not None}
            yield Event("tier", {"tier": report.tier, "reason": report.reason, "step": report.steps, **known})
