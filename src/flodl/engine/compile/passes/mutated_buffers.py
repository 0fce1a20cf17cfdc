"""A graph pass that saves buffers which the forward overwrites; imported only to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from . import fx
from .fx import insert_call

_aten = torch.ops.aten
_BACKWARD_TAGS = "is_backward", "must_be_in_backward"


class CloneMutatedBuffers(CustomGraphPass):
    """Save a copy of each buffer that the forward overwrites, for values that the backward recomputes.

    Torch's compiler lets the backward recompute small values from the inputs of the forward, even from a
    buffer that the forward has overwritten by then: the gradients of spectral norm are wrong by the change of
    one more power iteration, 0.2 % at first and 10 % after a large step.
    """

    def __call__(self, graph: Graph) -> None:
        written = {
            node.args[0]: None
            for node in graph.find_nodes(op="call_function", target=_aten.copy_.default)
            if node.meta.get("partitioner_tag") not in _BACKWARD_TAGS
        }
        needed = fx.with_ancestors([graph.output_node()])
        for buffer in written:
            if isinstance(buffer, Node) and buffer.op == "placeholder":
                _read_a_copy(graph, buffer, [user for user in buffer.users if user in needed])

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "cloned mutated buffers")


def _read_a_copy(graph: Graph, buffer: Node, readers: Sequence[Node]) -> None:
    """Compute the outputs of the graph from a copy; values that only go to the buffer need none."""
    readers = [reader for reader in readers if reader.op != "output"]
    if not readers:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        copied = insert_call(graph, _aten.clone.default, (buffer,))
    # It is only written if the backward needs it.
    copied.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for reader in readers:
        reader.replace_input_with(buffer, copied)
