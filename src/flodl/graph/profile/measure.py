"""Measure a profile: run a graph a few times and time its nodes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import InputError
from flodl.core.integers import is_index

from ..core import GraphCore
from ..plan.memory import tensors
from .clock import Clock, CudaClock, HostClock, Recorder, record_into
from .outline import outline
from .preserve import preserve_state
from .profile import Profile, Row

_MIN_DELAY_S = 0.002


def measure(graph: GraphCore, inputs: tuple[Any, ...], named: dict[str, Any], *, repeats: int) -> Profile:
    """Time the nodes of a graph on example inputs, and restore the graph and the inputs afterwards."""
    if not inputs and not named:
        raise InputError("profile has no input to run the model on. Pass an example: model.profile(x).")
    if not is_index(repeats, at_least=1):
        raise InputError(f"profile got repeats={repeats!r:.60}. Pass an integer of at least 1.")
    if any(is_lazy(value) for value in [*graph.parameters(), *graph.buffers()]):
        raise InputError("some parameters have no shape yet. Call the model once, then profile it.")
    device = _device(graph, (inputs, named))
    clock: Clock = CudaClock(device) if device.type == "cuda" else HostClock(device)
    with preserve_state(graph, inputs, named), torch.no_grad():
        for inner in graph._graphs():
            inner._memory.reset()
        _run(graph, inputs, named, clock)
        host_s = _run(graph, inputs, named, clock)
        recorder = Recorder(clock)
        with record_into(graph, recorder):
            runs = [_timed_run(graph, inputs, named, recorder, 3 * host_s) for _ in range(repeats)]
    runs.sort(key=lambda run: run.total_s)
    return _profile(graph, device, runs[: (len(runs) + 1) // 2])


@dataclass(frozen=True)
class _Run:
    total_s: float
    seconds: dict[str, float]
    calls: dict[str, int]


def _run(graph: GraphCore, inputs: tuple[Any, ...], named: dict[str, Any], clock: Clock) -> float:
    """Call the graph once, and return the launch time on the host."""
    args, kwargs = _clone_tensors((inputs, named))
    start = time.perf_counter()
    graph(*args, **kwargs)
    host_s = time.perf_counter() - start
    clock.wait()
    return host_s


def _timed_run(
    graph: GraphCore, inputs: tuple[Any, ...], named: dict[str, Any], recorder: Recorder, delay_s: float
) -> _Run:
    args, kwargs = _clone_tensors((inputs, named))
    clock = recorder.clock
    recorder.clear()
    clock.wait()
    clock.delay_device(max(delay_s, _MIN_DELAY_S))
    start = clock.pause()
    clock.resume()
    graph(*args, **kwargs)
    end = clock.pause()
    clock.wait()
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for path, began, ended in recorder.spans:
        seconds[path] = seconds.get(path, 0.0) + clock.seconds(began, ended)
        calls[path] = calls.get(path, 0) + 1
    return _Run(clock.seconds(start, end), seconds, calls)


def _clone_tensors(value: Any) -> Any:
    """Copy the tensors of an input: a module may write to them in place."""
    return pytree.tree_map_only(Tensor, torch.clone, value)


def _device(graph: GraphCore, inputs: Any) -> torch.device:
    values = [*tensors(inputs), *graph.parameters(), *graph.buffers()]
    return next((value.device for value in values if value.device.type != "cpu"), torch.device("cpu"))


def _profile(graph: GraphCore, device: torch.device, runs: list[_Run]) -> Profile:
    total = statistics.fmean(run.total_s for run in runs)
    rows = []
    for entry in outline(graph):
        seconds = statistics.fmean(run.seconds.get(entry.path, 0.0) for run in runs)
        calls = max(run.calls.get(entry.path, 0) for run in runs)
        share = min(1.0, seconds / total) if total > 0 else 0.0
        names = tuple(name for name in entry.names if name != entry.path)
        rows.append(Row(entry.path, entry.key, entry.kind, entry.title, seconds, calls, share, names))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Profile(total, name, len(runs), tuple(rows))
