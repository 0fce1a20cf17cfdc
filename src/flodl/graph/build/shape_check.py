"""Check every shape of a graph on the meta device, without computing anything."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import FlodlError, ShapeError, log

from ..core import GraphCore
from ..plan.error_path import path_of_error
from ..plan.spec import inputs_of
from ..plan.tuple_advice import tuple_advice_of

# Words of torch's errors about dtypes.
_ABOUT_DTYPES = ("scalar type", "dtype", "Input type (")


def check_shapes(graph: GraphCore, example: Any) -> None:
    """Run the graph on the meta device; an error names the failing node.

    `example` is a tensor, a tuple of all inputs in order, or a dict of inputs by name with the
    stream under its name. The graph itself does not change: a copy with meta weights runs.
    """
    if any(is_lazy(parameter) for parameter in graph.parameters()):
        log.verbose("shapes are not checked: a lazy module has no shapes before its first call.")
        return
    on_meta = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), example)
    args, named = inputs_of(on_meta, graph.input_names[0])
    meta_copy = _meta_copy(graph)
    meta_copy.reset_state()
    try:
        with torch.no_grad():
            meta_copy(*args, **named)
    except FlodlError:
        raise
    except Exception as error:
        path, details = path_of_error(error)
        if _needs_values(error):
            log.verbose("shape check stopped at '%s': it needs real values.", path or "the input")
            return
        message = f"{_first_line(error)} ({details})" if details else _first_line(error)
        advice = tuple_advice_of(error) or "Change the node to accept this shape, or fix the node before it."
        if any(word in _first_line(error) for word in _ABOUT_DTYPES):
            advice = (
                "The dtype is wrong here, not the shape: pass an example with the dtype of your data, "
                "such as torch.zeros(2, 3, dtype=torch.long) for indices, or convert it in the node before."
            )
        if not isinstance(example, Tensor | tuple | Mapping):
            advice = (
                f"The example is of type {type(example).__name__}: pass a tensor, a tuple of all inputs, "
                "or a dict."
            )
        raise ShapeError(f"{message}. {advice}", path=path) from error


def _meta_copy(graph: GraphCore) -> GraphCore:
    """Copy the graph with every tensor on the meta device, without copying any weight."""
    memo: dict[int, Any] = {}
    for module in graph.modules():
        values = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        for value in values:
            if isinstance(value, Tensor):
                empty = torch.empty_like(value, device="meta")
                is_parameter = isinstance(value, torch.nn.Parameter)
                memo[id(value)] = torch.nn.Parameter(empty, value.requires_grad) if is_parameter else empty
    return copy.deepcopy(graph, memo)


def _needs_values(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, NotImplementedError) or "meta tensor" in text or "device meta" in text


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
