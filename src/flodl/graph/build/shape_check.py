"""Checking every shape of a graph without computing anything, on the meta device."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import FlodlError, ShapeError, log

from ..plan.error_path import path_in

if TYPE_CHECKING:
    from ..graph import Graph

from ..plan.spec import inputs_of


def check_shapes(graph: Graph, example: Any) -> None:
    """Run the graph on shapes alone; an error names the node at fault.

    `example` is a tensor, a tuple of all inputs in order, or a dict of inputs by name with the
    stream under "input". Nothing of the graph changes: a copy with weights on the meta device runs.
    """
    if any(is_lazy(parameter) for parameter in graph.parameters()):
        log.verbose("shapes are not checked: a lazy module has none before its first call.")
        return
    args, named = inputs_of(pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), example))
    shadow = _shadow(graph)
    shadow.reset_state()
    try:
        with torch.no_grad():
            shadow(*args, **named)
    except FlodlError:
        raise
    except Exception as error:
        path, words = path_in(error)
        if _needs_numbers(error):
            log.verbose("shape check stopped at '%s': it needs real values.", path or "the input")
            return
        told = f"{_first_line(error)} ({words})" if words else _first_line(error)
        raise ShapeError(
            f"{told}. Make the node fit the shape that arrives, or mend the one before it.", path=path
        ) from error


def _shadow(graph: Graph) -> Graph:
    """Copy the graph with every tensor on the meta device, without copying a single weight."""
    memo: dict[int, Any] = {}
    for module in graph.modules():
        held = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        for value in held:
            if isinstance(value, Tensor):
                empty = torch.empty_like(value, device="meta")
                is_parameter = isinstance(value, torch.nn.Parameter)
                memo[id(value)] = torch.nn.Parameter(empty, value.requires_grad) if is_parameter else empty
    return copy.deepcopy(graph, memo)


def _needs_numbers(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, NotImplementedError) or "meta tensor" in text or "device meta" in text


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
