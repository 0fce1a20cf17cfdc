"""The state of graphs that a saved run needs besides the weights: carried values and recorded metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flodl.core import StateError, log
from flodl.core.formats import a_type
from flodl.core.integers import is_integer
from flodl.observe import unshared

from .graph import Graph


def graph_state(model: nn.Module) -> dict[str, Any]:
    """Return the carried values and metrics of each graph in a model, by module name.

    Save it with the states of model and optimizer: `state_dict` has neither. Recorded values that no epoch
    has closed yet are part of it.

    >>> from flodl import FlowBuilder
    >>> model = FlowBuilder(nn.Linear(4, 2)).build()
    >>> model.record("loss", 0.5)
    >>> model.end_epoch()
    >>> resumed = FlowBuilder(nn.Linear(4, 2)).build()
    >>> load_graph_state(resumed, graph_state(model))
    >>> resumed.epoch_count, resumed.trend("loss").values
    (1, [0.5])
    """
    _check_model("graph_state", model)
    return {
        name: {
            "carried": unshared(graph._memory.carried),
            "batch": graph._memory.batch,
            "book": graph._book.state_dict(),
            **({"timings": graph._timings.state_dict()} if graph._timings.names else {}),
        }
        for name, graph in _graphs(model)
    }


def check_graph_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise StateError or MetricError if `load_graph_state` could not load this; nothing changes."""
    for name, graph in _graphs(model):
        if name not in state:
            continue
        saved, wanted = state[name], len(graph._memory.carried)
        carried = saved.get("carried") if isinstance(saved, Mapping) else None
        if not isinstance(carried, tuple) or len(carried) != wanted:
            raise StateError(
                f"the saved state has {carried!r:.60}, not {wanted} carried values. Nothing was loaded.",
                path=name,
            )
        for value in carried:
            if value is not None and not pytree.tree_any(_is_tensor, value):
                raise StateError(
                    f"the saved state has the carried value {value!r:.60}, which has no tensors. "
                    "Nothing was loaded.",
                    path=name,
                )
        if saved.get("batch") is not None and not is_integer(saved["batch"], at_least=0):
            raise StateError(
                f"the saved state is for a batch of {saved['batch']!r:.80} samples. Nothing was loaded.",
                path=name,
            )
        type(graph._book)().load_state_dict(saved.get("book"))
        if "timings" in saved:
            type(graph._timings)().load_state_dict(saved["timings"])


def load_graph_state(
    model: nn.Module,
    state: Mapping[str, Any],
    device: torch.device | str | None = None,
    *,
    strict: bool = True,
) -> None:
    """Restore carried values and metrics, the result of `graph_state`; if it does not fit, nothing changes.

    Carried values are moved to the device of the model's parameters, or to `device`. With `strict=False`,
    graphs that are not in `state` keep their own, and others in `state` are ignored.
    """
    _check_model("load_graph_state", model)
    _check_names(model, state, strict)
    check_graph_state(model, state)
    if device is None:
        first = next(model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
    load_carried_values(model, state, torch.device(device))
    for name, graph in _graphs(model):
        if name in state:
            graph._book.load_state_dict(state[name]["book"])
            if "timings" in state[name]:
                graph._timings.load_state_dict(state[name]["timings"])


def load_carried_values(model: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the carried values alone; the metrics do not change."""
    for name, graph in _graphs(model):
        if name in state:
            saved = state[name]
            graph._memory.carried = pytree.tree_map_only(Tensor, lambda t: t.to(device), saved["carried"])
            graph._memory.batch = saved["batch"]


def reset_carried_values(model: nn.Module) -> None:
    """Drop the values that the graphs of a model carry, where its data begins again."""
    for _, graph in _graphs(model):
        graph.reset_state()


@contextmanager
def without_carried_values(model: nn.Module) -> Iterator[None]:
    """Run the block with nothing carried, and restore the carried values afterwards."""
    before = [(graph._memory, graph._memory.carried, graph._memory.batch) for _, graph in _graphs(model)]
    try:
        reset_carried_values(model)
        yield
    finally:
        for memory, carried, batch in before:
            memory.carried, memory.batch = carried, batch


def recorded(model: nn.Module) -> tuple[int, list[str]]:
    """Return the number of calls of `record` in the graphs of a model, and the metrics of the open epoch."""
    graphs = [*_graphs(model)]
    names = [metric for _, graph in graphs for metric in graph._book.pending_names]
    return sum(graph._book.num_records for _, graph in graphs), names


@contextmanager
def without_records(model: nn.Module) -> Iterator[None]:
    """Run the block without adding what it records to the metrics: they are those of the training."""
    before = [(name, graph, graph._book) for name, graph in _graphs(model)]
    try:
        for _, graph, book in before:
            graph._book = type(book)()
        yield
    finally:
        for name, graph, book in before:
            left_out = [metric for metric in graph._book.names if metric not in book.names]
            graph._book = book
            if left_out and book.names and not graph._has_noted_left_out:
                graph._has_noted_left_out = True
                log.warn(
                    "the step function records %r in an evaluation, where nothing is recorded%s. Return it "
                    "with the loss, as in `return loss, {%r: value}`: an evaluation then has its mean.",
                    left_out[0],
                    f" (graph {name!r})" if name else "",
                    left_out[0],
                )


def _check_model(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise StateError(f"{function} got {a_type(model)}. Pass the model, a graph or a module with graphs.")


def _check_names(model: nn.Module, state: object, strict: bool) -> None:
    """Raise if a state is not for the graphs of a model."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"the saved state of the graphs is {a_type(state)}. Pass the result of graph_state(model)."
        )
    names = {name for name, _ in _graphs(model)}
    if strict and names != state.keys():
        raise StateError(
            f"the saved state has graphs at {_shown(state)}, and the model at {_shown(names)}. Nothing was "
            "loaded. Pass the result of graph_state(model) for the same model, or strict=False to load the "
            "graphs that both have."
        )


def _shown(names: Collection[str]) -> str:
    """Return names of modules as text; the name of the model itself is empty."""
    return ", ".join(repr(name) for name in sorted(names, key=str)) or "no name"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _graphs(model: nn.Module) -> Iterator[tuple[str, Graph]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Graph))
