"""The model and the training steps that a monitor watches."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError, PictureError
from flodl.core.files import write_atomic

from ..events import Event
from .watched_settings import is_optimizer, is_schedule

PICTURE = "graph.svg"


class Watched:
    """Report what is known about watched objects as events; the run's folder receives the picture."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._model: Callable[[], Any] = lambda: None
        self._steps: list[_StepReports] = []

    def add(self, model: Any) -> Iterator[Event]:
        """Watch an object, and yield the events that describe a module or a `TrainStep`."""
        if hasattr(model, "report") and not hasattr(model, "parameters"):
            self._steps.append(_StepReports(model))
            yield from self.new_decisions()
        elif hasattr(model, "parameters"):
            self._model = weakref.ref(model)
            yield from _describe(model, self._run_dir)
        elif not (is_optimizer(model) or is_schedule(model)):
            raise MonitorError(
                f"cannot watch an object of type {type(model).__name__}. "
                "Pass a Graph, another nn.Module, a TrainStep, an optimizer, a torch LR scheduler, or "
                "what flodl.optim.apply returned."
            )

    def new_decisions(self) -> Iterator[Event]:
        """Yield the decisions that the watched steps made since the last call."""
        for step in self._steps:
            yield from step.new_events()

    def draw_profile(self) -> None:
        """Redraw a watched graph with its times, if it was profiled in the meantime."""
        model = self._model()
        if hasattr(model, "svg_with_profile") and self._run_dir.is_dir():
            with contextlib.suppress(PictureError, OSError):
                write_atomic(self._run_dir / PICTURE, str(model.svg_with_profile()))


class _StepReports:
    """Report each decision of a `TrainStep` once."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self._num_reported = 0
        self._last: tuple[Any, ...] | None = None

    def new_events(self) -> Iterator[Event]:
        """Yield the decisions since the last call, and the tier with its gain if the tier has changed."""
        report = self._step.report()
        for event in report.events[self._num_reported :]:
            if event.is_about_tier:
                data = {"tier": report.tier, "what": event.kind, "reason": event.reason, "step": event.step}
                yield Event("tier", data)
            else:
                yield step_note(event)
        self._num_reported = len(report.events)
        current = (report.tier, report.reason)
        if current != self._last:
            self._last = current
            measured = {"gain": report.gain, "eager_step_s": report.eager_step_s, "step_s": report.step_s}
            known = {name: value for name, value in measured.items() if value is not None}
            yield Event("tier", {"tier": report.tier, "reason": report.reason, "step": report.steps, **known})


def step_note(event: Any) -> Event:
    """Turn an event of a step that is not about its tier into a note; the log has printed warnings."""
    level = "warning" if event.is_warning else "info"
    data = {"message": event.reason, "about": event.kind, "step": event.step, "level": level}
    return Event("note", data)


def _describe(model: Any, run_dir: Path) -> Iterator[Event]:
    """Yield a "graph" event with the model's name and size, and for a graph also its hash and picture."""
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
            write_atomic(run_dir / PICTURE, _svg(model))
            data["path"] = PICTURE
        except (PictureError, OSError) as error:
            yield Event("alert", {"message": f"the model could not be drawn: {error}", "level": "info"})
    yield Event("graph", data)


def _svg(model: Any) -> str:
    try:
        return str(model.svg_with_profile())
    except PictureError:  # the graph was not profiled
        return str(model.svg())
