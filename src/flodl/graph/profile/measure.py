"""From a few calls of a graph to its profile."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import InputError

from ..plan.memory import tensors
from .clock import Clock, CudaClock, HostClock, Recorder, listening
from .outline import outline
from .profile import Profile, Row
from .untouched import untouched

if TYPE_CHECKING:
    from ..graph import Graph

_SHORTEST_HEAD_START_S = 0.002


def measure(graph: Graph, inputs: tuple[Any, ...], named: dict[str, Any], *, repeats: int) -> Profile:
    """Time the nodes of a graph on example inputs and leave the graph and the inputs as they were."""
    if not inputs and not named:
        raise InputError("profile has no input to run the model on. Give it an example: model.profile(x).")
    if repeats < 1:
        raise InputError(f"profile has repeats={repeats}. Give it at least 1.")
    if any(is_lazy(value) for value in [*graph.parameters(), *graph.buffers()]):
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
    start = clock.stop()
    clock.go()
    graph(*args, **kwargs)
    end = clock.stop()
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
    for entry in outline(graph):
        seconds = statistics.fmean(run.seconds.get(entry.path, 0.0) for run in runs)
        calls = max(run.calls.get(entry.path, 0) for run in runs)
        share = min(1.0, seconds / total) if total > 0 else 0.0
        names = tuple(name for name in entry.names if name != entry.path)
        rows.append(Row(entry.path, entry.key, entry.kind, entry.what, seconds, calls, share, names))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Profile(total, name, len(runs), tuple(rows))
