"""Timing every node of a graph, and the parts of its control nodes, by marks on the device's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ..control.control import Control
from ..plan.signature import method
from .outline import joined

if TYPE_CHECKING:
    from ..graph import Graph

Mark = Any


class Clock(Protocol):
    """Where marks come from, and how far apart two of them are."""

    def stop(self) -> Mark:
        """Note this moment; what the caller does until `go` is nobody's time."""

    def go(self) -> None:
        """Let time run on."""

    def wait(self) -> None:
        """Wait until every mark has happened."""

    def head_start(self, seconds: float) -> None:
        """Let the host run ahead of the device by about this long."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Give the time between two marks."""


class HostClock:
    """Marks are host time less the pauses; an accelerator other than CUDA is waited for at each."""

    def __init__(self, device: torch.device) -> None:
        self._waits = device.type != "cpu"
        self._stopped = 0
        self._paused = 0

    def stop(self) -> int:
        if self._waits:
            torch.accelerator.synchronize()
        self._stopped = time.perf_counter_ns()
        return self._stopped - self._paused

    def go(self) -> None:
        self._paused += time.perf_counter_ns() - self._stopped

    def wait(self) -> None: ...

    def head_start(self, seconds: float) -> None: ...

    def seconds(self, start: int, end: int) -> float:
        return (end - start) / 1e9


class CudaClock:
    """Marks are events on the current stream, so they tell device time and not launch time."""

    _CYCLES_PER_SECOND = 2e9
    _LONGEST_S = 0.5

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stop(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def go(self) -> None: ...

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def head_start(self, seconds: float) -> None:
        """Keep the device busy: were it idle, the gaps between launches would count as work of the nodes."""
        with torch.cuda.device(self._device):
            cycles = int(min(seconds, self._LONGEST_S) * self._CYCLES_PER_SECOND)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3


@dataclass
class _Running:
    """A graph in the middle of a call: `done` is the last node that has finished."""

    graph: Graph
    path: str
    since: Mark
    done: int

    @property
    def finished(self) -> bool:
        return self.done == len(self.graph._spec.nodes) - 1

    def where(self) -> tuple[Any, str]:
        """Give what runs now and its path."""
        node = self.graph._spec.nodes[self.done + 1]
        made_by_call = node.has_module or node.function is not None
        return self.graph.target(node.key) if made_by_call else None, joined(self.path, node.key)


@dataclass
class _Part:
    """A part of a control node in the middle of a call."""

    target: Any
    path: str
    since: Mark

    def where(self) -> tuple[Any, str]:
        return self.target, self.path


class Recorder:
    """Follows one call through nested graphs; `spans` has (path, start, end) of each node and part."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spans: list[tuple[str, Mark, Mark]] = []
        self._open: list[_Running | _Part] = []
        self._calls: dict[str, int] = {}

    def clear(self) -> None:
        """Get ready for another call."""
        self.spans = []
        self._open = []
        self._calls = {}

    def start(self, graph: Graph) -> None:
        """A graph begins."""
        now = self.clock.stop()
        self._drop_finished()
        path = self._path_of(graph) if self._open else ""
        self._open.append(_Running(graph, path, now, done=len(graph._spec.input_names)))
        self.clock.go()

    def lap(self, graph: Graph, index: int) -> None:
        """A node of a graph has finished."""
        now = self.clock.stop()
        while not (isinstance(top := self._open[-1], _Running) and top.graph is graph):
            self._open.pop()
        self._note(top.where()[1], top.since, now)
        top.done, top.since = index, now
        self.clock.go()

    def enter(self, target: Any) -> None:
        """Something that is a part of a control node begins; elsewhere it is a node and has its own time."""
        now = self.clock.stop()
        self._drop_finished()
        holder, _ = self._open[-1].where() if self._open else (None, "")
        if isinstance(holder, Control) and any(part is target for part in holder.parts().values()):
            self._open.append(_Part(target, self._path_of(target), now))
        self.clock.go()

    def leave(self, target: Any) -> None:
        """What `enter` was told about has finished."""
        now = self.clock.stop()
        self._drop_finished()
        top = self._open[-1] if self._open else None
        if isinstance(top, _Part) and top.target is target:
            self._open.pop()
            self._note(top.path, top.since, now)
        self.clock.go()

    def _note(self, path: str, start: Mark, end: Mark) -> None:
        self._calls[path] = self._calls.get(path, 0) + 1
        self.spans.append((path, start, end))

    def _drop_finished(self) -> None:
        while self._open and isinstance(top := self._open[-1], _Running) and top.finished:
            self._open.pop()

    def _path_of(self, target: Any) -> str:
        """Give the path of what begins inside the running node; of several, the one called least."""
        holder, path = self._open[-1].where()
        if holder is target:
            return path
        found = [joined(path, name) for name in _names_in(holder, target)]
        return min(found, key=lambda each: self._calls.get(each, 0), default=path)


class Stopwatch:
    """What a timed graph talks to."""

    def __init__(self, recorder: Recorder, graph: Graph) -> None:
        self._recorder = recorder
        self._graph = graph

    def start(self) -> None:
        self._recorder.start(self._graph)

    def lap(self, index: int) -> None:
        self._recorder.lap(self._graph, index)


class _TimedFunction:
    """Stands in for a plain function that is a part of a control node."""

    def __init__(self, recorder: Recorder, function: Callable[..., Any]) -> None:
        self._recorder = recorder
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._recorder.enter(self)
        result = self._function(*args, **kwargs)
        self._recorder.leave(self)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _TimedResettable(_TimedFunction):
    """Stands in for a callable object that a loop resets; the loop looks for the method in the class."""

    def reset(self) -> None:
        self._function.reset()  # type: ignore[attr-defined]


@contextmanager
def listening(root: Graph, recorder: Recorder) -> Iterator[None]:
    """Make every graph and control node tell the recorder; the caller puts their attributes back."""
    with ExitStack() as hooks:
        for graph in list(root._graphs()):
            graph._stopwatch = Stopwatch(recorder, graph)
            graph._replan(timed=True)
            # A compiled call would trace the stopwatch; the timed program runs as it is.
            vars(graph)["_compiled_call_impl"] = None
        hooked: set[int] = set()
        for control in [module for module in root.modules() if isinstance(module, Control)]:
            for name, part in control.parts().items():
                if not isinstance(part, nn.Module):
                    stand_in = _TimedResettable if method(part, "reset") else _TimedFunction
                    vars(control)[name] = stand_in(recorder, part)
                elif id(part) not in hooked:
                    hooked.add(id(part))
                    before = part.register_forward_pre_hook(lambda module, _: recorder.enter(module))
                    after = part.register_forward_hook(lambda module, _, __: recorder.leave(module))
                    hooks.callback(before.remove)
                    hooks.callback(after.remove)
        yield


def _names_in(holder: Any, target: Any) -> list[str]:
    if isinstance(holder, Control):
        direct = [name for name, part in holder.parts().items() if part is target]
        if direct:
            return direct
    if not isinstance(holder, nn.Module):
        return []
    return [name for name, module in holder.named_modules(remove_duplicate=False) if module is target]
