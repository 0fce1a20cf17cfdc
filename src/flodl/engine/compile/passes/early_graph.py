"""Graphs before autograd, where programs still write to their tensors; imported only to compile."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

# Such as `operator.iadd`.
_WRITING_OPERATORS = {"setitem"} | {
    name for name in vars(operator) if f"__{name}__" in vars(operator) and name[0] == "i"
}


def insert_call(graph: Graph, target: Any, arguments: tuple[Any, ...], **named: Any) -> Node:
    """Insert a call node into a graph before autograd, and compute its fake value."""
    node = graph.call_function(target, arguments, named)
    values = torch.fx.node.map_arg(arguments, lambda node: node.meta["example_value"])
    with torch.no_grad():
        node.meta["example_value"] = target(*values, **named)
    return node


def is_written_between(first: Node, last: Node) -> bool:
    """Return whether a call between two nodes may write to a tensor."""
    node = first.next
    while node is not last and not writes(node):
        node = node.next
    return node is not last


def writes(node: Node) -> bool:
    """Return whether a call may write to a tensor."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    if getattr(node.target, "__module__", None) == "torch.nn.functional" and True in node.args:
        return True  # perhaps `inplace`
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _WRITING_OPERATORS
