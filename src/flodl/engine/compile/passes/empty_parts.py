"""A graph pass that removes concatenations with empty tensors; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx

_aten = torch.ops.aten


class RemoveEmptyParts(CustomGraphPass):
    """Replace a concatenation by its only part that is not empty.

    The caches of transformers append keys and values to an empty tensor, in training as well. Torch's
    compiler copies both for each layer, and attention no longer reads them from the matmul's result.
    """

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=_aten.cat.default)):
            parts = [part for part in node.args[0] if not _is_empty(part)]
            if len(parts) == 1 and _can_replace(node, parts[0]):
                node.replace_all_uses_with(parts[0])
                graph.erase_node(node)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "concatenations with empty tensors")


def _is_empty(part: Node) -> bool:
    shape = part.meta["val"].shape
    return all(isinstance(size, int) for size in shape) and 0 in shape


def _can_replace(node: Node, part: Node) -> bool:
    """Return whether a part can stand for the concatenation; a result must have memory of its own."""
    old, new = node.meta["val"], part.meta["val"]
    is_result = any(user.op == "output" for user in node.users)
    return fx.is_cuda(node) and not is_result and old.shape == new.shape and old.dtype == new.dtype
