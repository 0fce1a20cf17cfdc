"""A graph pass: gradients of selected slices are stacked; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx
from .fx import insert_call

_aten = torch.ops.aten


class StackSelectedSlices(CustomGraphPass):
    """Stack the gradients of all slices of a tensor, instead of adding each to zeros.

    `torch.nn.MultiheadAttention` selects queries, keys and values from one tensor. Its gradient is a sum of
    three tensors that are zero outside of one slice, and torch's compiler reads all three for each element.
    """

    def __call__(self, graph: Graph) -> None:
        for node in reversed(list(graph.find_nodes(op="call_function", target=_aten.add.Tensor))):
            # Nodes that were part of an outer sum have already been removed.
            if not node.users or not fx.is_cuda(node) or (slices := _slices(node)) is None:
                continue
            dim, parts = slices
            with graph.inserting_before(node):
                rows = [
                    insert_call(graph, _aten.unsqueeze.default, (part, dim), instead_of=node)
                    for part in parts
                ]
                stack = insert_call(graph, _aten.cat.default, (rows, dim), instead_of=node)
            node.replace_all_uses_with(stack)
            graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "stacked slices")


def _slices(total: Node) -> tuple[int, list[Node]] | None:
    """Return the dimension and the slices of a sum in which each slice appears once, in order."""
    found: dict[int, Node] = {}
    dims: set[int] = set()
    waiting: list[Any] = [total]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Node) or node.kwargs or node.meta["val"].dtype is not total.meta["val"].dtype:
            return None
        if node.target is _aten.add.Tensor and (node is total or len(node.users) == 1):
            waiting += node.args
            continue
        if (
            node.target is not _aten.select_scatter.default
            or len(node.users) != 1
            or not fx.is_zeros(node.args[0])
        ):
            return None
        _, part, dim, index = node.args
        assert isinstance(dim, int)
        assert isinstance(index, int)
        length = node.meta["val"].shape[dim]
        if not isinstance(part, Node) or not isinstance(length, int) or index % length in found:
            return None
        dims.add(dim % node.meta["val"].dim())
        found[index % length] = part
    (dim, *others) = dims
    is_whole = not others and len(found) == total.meta["val"].shape[dim]
    return (dim, [found[index] for index in sorted(found)]) if is_whole else None
