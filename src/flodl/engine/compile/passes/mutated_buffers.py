"""Buffers that a step writes to, as they were before; imported only when something is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from . import fx as rewriting
from .fx import insert_call

_aten = torch.ops.aten
_LATER = "is_backward", "must_be_in_backward"


class CloneMutatedBuffers(CustomGraphPass):
    """Keep what a buffer was, where the forward writes to it, for what the backward computes again.

    Torch's compiler lets the backward compute small values anew from what the forward was given, also from a
    buffer that the forward has written to in the meantime: the gradients of spectral norm are wrong by
    what one more turn of its iteration changes, 0.2 % at first and 10 % after a large step.
    """

    def __call__(self, graph: Graph) -> None:
        written = {
            node.args[0]: None
            for node in graph.find_nodes(op="call_function", target=_aten.copy_.default)
            if node.meta.get("partitioner_tag") not in _LATER
        }
        needed = rewriting.with_ancestors([graph.output_node()])
        for buffer in written:
            if isinstance(buffer, Node) and buffer.op == "placeholder":
                _keep(graph, buffer, [user for user in buffer.users if user in needed])

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__), "buffers as they were")


def _keep(graph: Graph, buffer: Node, readers: Sequence[Node]) -> None:
    """Let what the program gives be made from a copy; what is only written to the buffer needs none."""
    readers = [reader for reader in readers if reader.op != "output"]
    if not readers:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        before = insert_call(graph, _aten.clone.default, (buffer,))
    # Only where the backward needs it is it written at all.
    before.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for reader in readers:
        reader.replace_input_with(buffer, before)
