"""From a few calls of a graph to its profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import InputError

from . import places
from .control.control import Control
from .memory import tensors
from .picture.words import title_of
from .places import is_graph
from .profile import Profile, Row
from .stopwatch import Clock, CudaClock, HostClock, Recorder, joined, listening
from .untouched import untouched

if TYPE_CHECKING:
    from .graph import Graph

_SHORTEST_HEAD_START_S = 0.002


def measure(graph: Graph, inputs: tuple[Any, ...], named: dict[str, Any], *, repeats: int) -> Profile:
    """Time the nodes of a graph on example inputs and leave the graph and the inputs as they were."""
    if not inputs and not named:
        raise InputError("profile has no input to run the model on. Give it an example: model.profile(x).")
    if repeats < 1:
        raise InputError(f"profile has repeats={repeats}. Give it at least 1.")
    if any(is_lazy(parameter) for parameter in graph.parameters()):
        raise InputError("some parameters have no shape yet. Call the model once, then profile it.")
    device = _device(graph, (inputs, named))
    clock: Clock = CudaClock(device) if device.type == "cuda" else HostClock(device)
    with untouched(graph, inputs, named), torch.no_grad():
        for inner in graph._graphs():
            inner._memory.reset()
        _run(graph, inputs, named, clock)
        host_s = _run(graph, inputs, named, clock)
        recorder = Recorder(clock)
        with listening(graph, recorder):
            runs = [_timed_run(graph, inputs, named, recorder, 3 * host_s) for _ in range(repeats)]
    runs.sort(key=lambda run: run.total_s)
    return _profile(graph, device, runs[: (len(runs) + 1) // 2])


@dataclass(frozen=True)
class _Run:
    total_s: float
    seconds: dict[str, float]
    calls: dict[str, int]


def _run(graph: Graph, inputs: tuple[Any, ...], named: dict[str, Any], clock: Clock) -> float:
    """Call the graph once, and give the time that the host took to launch it."""
    args, kwargs = _copied((inputs, named))
    start = time.perf_counter()
    graph(*args, **kwargs)
    taken = time.perf_counter() - start
    clock.wait()
    return taken


def _timed_run(
    graph: Graph, inputs: tuple[Any, ...], named: dict[str, Any], recorder: Recorder, head_start_s: float
) -> _Run:
    args, kwargs = _copied((inputs, named))
    clock = recorder.clock
    recorder.clear()
    clock.wait()
    clock.head_start(max(head_start_s, _SHORTEST_HEAD_START_S))
    start = clock.mark()
    graph(*args, **kwargs)
    end = clock.mark()
    clock.wait()
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for path, began, ended in recorder.spans:
        seconds[path] = seconds.get(path, 0.0) + clock.seconds(began, ended)
        calls[path] = calls.get(path, 0) + 1
    return _Run(clock.seconds(start, end), seconds, calls)


def _copied(value: Any) -> Any:
    """Copy the tensors of an input: a module may write into them."""
    return pytree.tree_map_only(Tensor, torch.clone, value)


def _device(graph: Graph, inputs: Any) -> torch.device:
    held = [*tensors(inputs), *graph.parameters(), *graph.buffers()]
    return next((value.device for value in held if value.device.type != "cpu"), torch.device("cpu"))


def _profile(graph: Graph, device: torch.device, runs: list[_Run]) -> Profile:
    total = statistics.fmean(run.total_s for run in runs)
    rows = []
    for entry in _outline(graph, "", ("",)):
        seconds = statistics.fmean(run.seconds.get(entry.path, 0.0) for run in runs)
        calls = max(run.calls.get(entry.path, 0) for run in runs)
        share = min(1.0, seconds / total) if total > 0 else 0.0
        names = tuple(name for name in dict.fromkeys(entry.names) if name != entry.path)
        rows.append(Row(entry.path, entry.key, entry.kind, entry.what, seconds, calls, share, names))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Profile(total, name, len(runs), tuple(rows))


@dataclass(frozen=True)
class _Entry:
    path: str
    key: str
    kind: str
    what: str
    names: tuple[str, ...]


def _outline(graph: Graph, path: str, above: tuple[str, ...]) -> Iterator[_Entry]:
    """List the nodes of a graph in running order, each before its parts; `above` are all paths to the graph."""
    spec = graph._spec
    for index, node in enumerate(spec.nodes):
        if node.kind == "input":
            continue
        target = graph.target(node.key) if node.has_module or node.function is not None else None
        kind = "graph" if is_graph(target) else node.kind
        what = title_of(target) if target is not None else node.merge_op or node.kind
        keys = dict.fromkeys((node.key, *spec.tags_of.get(index, ())))
        names = tuple(joined(prefix, key) for prefix in above for key in keys)
        place = joined(path, node.key)
        yield _Entry(place, node.key, kind, what, names)
        yield from _inside(target, place, names, above)


def _inside(target: Any, path: str, names: tuple[str, ...], above: tuple[str, ...]) -> Iterator[_Entry]:
    """List what lies under a node or part; a labelled graph is also known by its label in the graph around."""
    if is_graph(target):
        by_label = tuple(joined(prefix, target.label) for prefix in above) if target.label else ()
        yield from _outline(target, path, tuple(dict.fromkeys(names + by_label)))
        return
    if isinstance(target, Control):
        for role, part in target.parts().items():
            further = tuple(joined(name, role) for name in names)
            place = joined(path, role)
            yield _Entry(place, role, "graph" if is_graph(part) else "call", title_of(part), further)
            yield from _inside(part, place, further, above)
    elif isinstance(target, nn.Module):
        for place, inner in places._graphs_at(path, target):
            further = tuple(name + place.removeprefix(path) for name in names)
            yield from _inside(inner, place, further, above)
