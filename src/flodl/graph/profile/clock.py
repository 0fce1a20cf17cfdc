"""Time every node of a graph, and the parts of its control nodes, with timestamps of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ..control.control import Control
from ..core import GraphCore
from ..plan.signature import method
from .outline import join_path

Mark = Any


class Clock(Protocol):
    """A source of timestamps (marks)."""

    def pause(self) -> Mark:
        """Return a mark and pause; the time until `resume` is not counted."""

    def resume(self) -> None:
        """Continue after `pause`."""

    def wait(self) -> None:
        """Wait until the device has reached every mark."""

    def delay_device(self, seconds: float) -> None:
        """Keep the device busy for about this long, so that the host runs ahead of it."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the time between two marks."""


class HostClock:
    """Marks are host time minus the pauses; each mark synchronizes with an accelerator other than CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._synchronizes = device.type != "cpu"
        self._paused_at = 0
        self._paused_ns = 0

    def pause(self) -> int:
        if self._synchronizes:
            torch.accelerator.synchronize()
        self._paused_at = time.perf_counter_ns()
        return self._paused_at - self._paused_ns

    def resume(self) -> None:
        self._paused_ns += time.perf_counter_ns() - self._paused_at

    def wait(self) -> None: ...

    def delay_device(self, seconds: float) -> None: ...

    def seconds(self, start: int, end: int) -> float:
        return (end - start) / 1e9


class CudaClock:
    """Marks are events on the current stream, so they measure device time, not launch time."""

    _CYCLES_PER_SECOND = 2e9
    _MAX_DELAY_S = 0.5

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pause(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def resume(self) -> None: ...

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def delay_device(self, seconds: float) -> None:
        """Keep the device busy: if it were idle, the gaps between launches would count as node time."""
        with torch.cuda.device(self._device):
            cycles = int(min(seconds, self._MAX_DELAY_S) * self._CYCLES_PER_SECOND)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3


@dataclass
class _RunningGraph:
    """A graph during a call: `done` is the last finished node."""

    graph: GraphCore
    path: str
    since: Mark
    done: int

    @property
    def finished(self) -> bool:
        return self.done == len(self.graph.spec.nodes) - 1

    def current(self) -> tuple[Any, str]:
        """Return the module or function that runs now, and its path."""
        node = self.graph.spec.nodes[self.done + 1]
        has_target = node.has_module or node.function is not None
        return self.graph.target(node.key) if has_target else None, join_path(self.path, node.key)


@dataclass
class _RunningPart:
    """A part of a control node during a call."""

    target: Any
    path: str
    since: Mark

    def current(self) -> tuple[Any, str]:
        return self.target, self.path


class Recorder:
    """Follow one call through nested graphs; `spans` contains (path, start, end) of each node and part."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spans: list[tuple[str, Mark, Mark]] = []
        self._open: list[_RunningGraph | _RunningPart] = []
        self._calls: dict[str, int] = {}

    def clear(self) -> None:
        """Prepare for the next call."""
        self.spans = []
        self._open = []
        self._calls = {}

    def start(self, graph: GraphCore) -> None:
        """Record that a graph starts."""
        now = self.clock.pause()
        self._drop_finished()
        path = self._path_of(graph) if self._open else ""
        self._open.append(_RunningGraph(graph, path, now, done=len(graph.spec.input_names)))
        self.clock.resume()

    def lap(self, graph: GraphCore, index: int) -> None:
        """Record that a node of a graph has finished."""
        now = self.clock.pause()
        while not (isinstance(top := self._open[-1], _RunningGraph) and top.graph is graph):
            self._open.pop()
        self._add_span(top.current()[1], top.since, now)
        top.done, top.since = index, now
        self.clock.resume()

    def enter(self, target: Any) -> None:
        """Record that a part of a control node starts; anything else is a node, which `lap` times."""
        now = self.clock.pause()
        self._drop_finished()
        holder, _ = self._open[-1].current() if self._open else (None, "")
        if isinstance(holder, Control) and any(part is target for part in holder.parts().values()):
            self._open.append(_RunningPart(target, self._path_of(target), now))
        self.clock.resume()

    def leave(self, target: Any) -> None:
        """Record that the target of `enter` has finished."""
        now = self.clock.pause()
        self._drop_finished()
        top = self._open[-1] if self._open else None
        if isinstance(top, _RunningPart) and top.target is target:
            self._open.pop()
            self._add_span(top.path, top.since, now)
        self.clock.resume()

    def _add_span(self, path: str, start: Mark, end: Mark) -> None:
        self._calls[path] = self._calls.get(path, 0) + 1
        self.spans.append((path, start, end))

    def _drop_finished(self) -> None:
        while self._open and isinstance(top := self._open[-1], _RunningGraph) and top.finished:
            self._open.pop()

    def _path_of(self, target: Any) -> str:
        """Return the path of a target inside the running node; of several paths, the least called one."""
        holder, path = self._open[-1].current()
        if holder is target:
            return path
        found = [join_path(path, name) for name in _names_in(holder, target)]
        return min(found, key=lambda each: self._calls.get(each, 0), default=path)


class Stopwatch:
    """The timer that the generated code of a timed graph calls."""

    def __init__(self, recorder: Recorder, graph: GraphCore) -> None:
        self._recorder = recorder
        self._graph = graph

    def start(self) -> None:
        self._recorder.start(self._graph)

    def lap(self, index: int) -> None:
        self._recorder.lap(self._graph, index)


class _TimedFunction:
    """Replace a plain function that is a part of a control node."""

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
    """Replace a callable object that a loop resets; the loop looks up the method on the class."""

    def reset(self) -> None:
        self._function.reset()  # type: ignore[attr-defined]


@contextmanager
def record_into(root: GraphCore, recorder: Recorder) -> Iterator[None]:
    """Connect every graph and control node to the recorder; the caller restores their attributes."""
    with ExitStack() as hooks:
        for graph in list(root._graphs()):
            graph._stopwatch = Stopwatch(recorder, graph)
            graph._replan(timed=True)
            # A compiled call would trace the stopwatch, so the timed program runs uncompiled.
            vars(graph)["_compiled_call_impl"] = None
        hooked: set[int] = set()
        for control in [module for module in root.modules() if isinstance(module, Control)]:
            for name, part in control.parts().items():
                if not isinstance(part, nn.Module):
                    wrapper = _TimedResettable if method(part, "reset") else _TimedFunction
                    vars(control)[name] = wrapper(recorder, part)
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
