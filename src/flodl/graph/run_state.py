"""The state of graphs that a saved run needs besides the weights: carried values and recorded metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .graph import Graph


def graph_state(model: nn.Module) -> dict[str, Any]:
    """Return the carried values and metrics of each graph in a model, by module name."""
    return {
        name: {
            "carried": graph._memory.carried,
            "batch": graph._memory.batch,
            "book": graph._book.state_dict(),
        }
        for name, graph in _graphs(model)
    }


def load_graph_state(model: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Restore carried values and metrics; graphs that are not in `state` keep their own."""
    load_carried_values(model, state, device)
    for name, graph in _graphs(model):
        if name in state:
            graph._book.load_state_dict(state[name]["book"])


def load_carried_values(model: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the carried values alone; the metrics do not change."""
    for name, graph in _graphs(model):
        if name in state:
            saved = state[name]
            graph._memory.carried = pytree.tree_map_only(Tensor, lambda t: t.to(device), saved["carried"])
            graph._memory.batch = saved["batch"]


@contextmanager
def without_carried_values(model: nn.Module) -> Iterator[None]:
    """Run the block with nothing carried, and restore the carried values afterwards."""
    before = [(graph._memory, graph._memory.carried, graph._memory.batch) for _, graph in _graphs(model)]
    try:
        for _, graph in _graphs(model):
            graph.reset_state()
        yield
    finally:
        for memory, carried, batch in before:
            memory.carried, memory.batch = carried, batch


def _graphs(model: nn.Module) -> Iterator[tuple[str, Graph]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Graph))
