"""A graph pass that decomposes GRU cells, so that their operations are fused with the code around them.

Torch computes a GRU cell with a single kernel in forward and backward, and sums the gradients of its biases
with two more. In a loop over time these cannot be fused with anything. Imported only when something is
compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from . import fx

_FORWARD = torch.ops.aten._thnn_fused_gru_cell.default
_BACKWARD = torch.ops.aten._thnn_fused_gru_cell_backward.default


class DecomposeGruCells(CustomGraphPass):
    """Replace a GRU cell and its backward by single operations, for float32 on CUDA."""

    def __call__(self, graph: Graph) -> None:
        for cell in list(graph.find_nodes(op="call_function", target=_FORWARD)):
            outputs = _outputs(cell)
            backwards = [user for saved in outputs[1] for user in saved.users]
            is_complete = all(user.target is _BACKWARD for user in backwards)
            if is_complete and all(map(fx.is_cuda_float32, outputs[0])):
                _decompose(graph, cell, outputs, backwards)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "decomposed GRU cells")


def _decompose(graph: Graph, cell: Node, outputs: list[list[Node]], backwards: Sequence[Node]) -> None:
    # Missing biases are not among the arguments.
    hidden, *saved = _insert(graph, cell, gru_cell, (*cell.args, None, None)[:5])
    _replace(graph, outputs[0], hidden)
    for backward in backwards:
        new = _insert(graph, backward, gru_cell_backward, (backward.args[0], *saved, backward.args[2]))
        for index, old in enumerate(_outputs(backward)):
            _replace(graph, old, new[index])
        graph.erase_node(backward)
    _replace(graph, outputs[1], None)
    graph.erase_node(cell)


def gru_cell(
    of_input: Tensor, of_hidden: Tensor, hidden: Tensor, bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the next hidden state, and the gates and other values that the backward needs."""
    width = hidden.shape[1]
    if bias is not None and hidden_bias is not None:
        of_input, of_hidden = of_input + bias, of_hidden + hidden_bias
    reset = torch.sigmoid(of_input[:, :width] + of_hidden[:, :width])
    update = torch.sigmoid(of_input[:, width : 2 * width] + of_hidden[:, width : 2 * width])
    before = of_hidden[:, 2 * width :]
    new = torch.tanh(of_input[:, 2 * width :] + reset * before)
    return new + update * (hidden - new), reset, update, new, hidden, before


def gru_cell_backward(
    grad: Tensor,
    reset: Tensor,
    update: Tensor,
    new: Tensor,
    hidden: Tensor,
    before: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of both matmuls, of the hidden state and of both biases."""
    of_new = grad * (1 - update) * (1 - new * new)
    of_update = grad * (hidden - new) * (1 - update) * update
    of_reset = of_new * before * (1 - reset) * reset
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    sums = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * update, *sums


def _insert(
    graph: Graph, before: Node, function: Callable[..., Any], arguments: Sequence[Any]
) -> tuple[Any, ...]:
    """Trace a function, insert its graph before a node, and return its outputs."""
    values = [each.meta["val"] if isinstance(each, Node) else each for each in arguments]
    traced = make_fx(function, select_decomp_table())(*values).graph
    inputs = dict(zip(traced.find_nodes(op="placeholder"), arguments))
    node = before.prev
    with graph.inserting_before(before):
        outputs = graph.graph_copy(traced, inputs)
    while (node := node.next) is not before:
        fx.copy_meta(before, node)
    assert isinstance(outputs, tuple | list)
    return tuple(outputs)


def _outputs(node: Node) -> list[list[Node]]:
    """Return, for each of the five outputs of a node, the nodes that read it."""
    readers: list[list[Node]] = [[] for _ in range(5)]
    for user in node.users:
        assert user.target is operator.getitem
        readers[user.args[1]].append(user)  # type: ignore[index]
    return readers


def _replace(graph: Graph, old: Sequence[Node], new: Node | None) -> None:
    for node in old:
        if new is not None:
            node.replace_all_uses_with(new)
        graph.erase_node(node)
