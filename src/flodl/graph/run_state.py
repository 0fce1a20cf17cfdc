"""What graphs remember beside their weights: values carried to the next call, and their book of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .graph import Graph


def remembered(model: nn.Module) -> dict[str, Any]:
    """Give what each graph of a model remembers, by the name of its module."""
    return {
        name: {
            "carried": graph._memory.carried,
            "batch": graph._memory.batch,
            "book": graph._book.state_dict(),
        }
        for name, graph in _graphs(model)
    }


def remember(model: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Give graphs their memory back; those that were not there keep their own."""
    carry_again(model, state, device)
    for name, graph in _graphs(model):
        if name in state:
            graph._book.load_state_dict(state[name]["book"])


def carry_again(model: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Let graphs carry what they carried when they were saved; their books stay as they are."""
    for name, graph in _graphs(model):
        if name in state:
            saved = state[name]
            graph._memory.carried = pytree.tree_map_only(Tensor, lambda t: t.to(device), saved["carried"])
            graph._memory.batch = saved["batch"]


@contextmanager
def carrying_nothing(model: nn.Module) -> Iterator[None]:
    """Begin with nothing carried, and carry on afterwards with what was there before."""
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
