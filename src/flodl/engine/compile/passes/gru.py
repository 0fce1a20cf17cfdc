"""Recurrent cells taken apart, so that their parts are fused with what stands around them.

Torch computes a GRU cell by one kernel of its own, forward and backward, and sums up the gradients of its
biases by two more. In a loop over time these cannot be fused with anything. Imported only when something is
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

from . import fx as rewriting

_FORWARD = torch.ops.aten._thnn_fused_gru_cell.default
_BACKWARD = torch.ops.aten._thnn_fused_gru_cell_backward.default


class DecomposeGruCells(CustomGraphPass):
    """Write a GRU cell and its backward out in single operations, for float32 on CUDA."""

    def __call__(self, graph: Graph) -> None:
        for cell in list(graph.find_nodes(op="call_function", target=_FORWARD)):
            outputs = _outputs(cell)
            backwards = [user for kept in outputs[1] for user in kept.users]
            is_whole = all(user.target is _BACKWARD for user in backwards)
            if is_whole and all(map(rewriting.is_cuda_float32, outputs[0])):
                _open(graph, cell, outputs, backwards)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__), "opened cells")


def _open(graph: Graph, cell: Node, outputs: list[list[Node]], backwards: Sequence[Node]) -> None:
    # Biases that are not there are left out.
    made, *kept = _written(graph, cell, _cell, (*cell.args, None, None)[:5])
    _replace(graph, outputs[0], made)
    for backward in backwards:
        new = _written(graph, backward, _cell_backward, (backward.args[0], *kept, backward.args[2]))
        for place, old in enumerate(_outputs(backward)):
            _replace(graph, old, new[place])
        graph.erase_node(backward)
    _replace(graph, outputs[1], None)
    graph.erase_node(cell)


def _cell(
    of_input: Tensor, of_hidden: Tensor, hidden: Tensor, bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, ...]:
    """Give the next hidden state, and what the backward needs: the gates and parts of them."""
    width = hidden.shape[1]
    if bias is not None and hidden_bias is not None:
        of_input, of_hidden = of_input + bias, of_hidden + hidden_bias
    reset = torch.sigmoid(of_input[:, :width] + of_hidden[:, :width])
    update = torch.sigmoid(of_input[:, width : 2 * width] + of_hidden[:, width : 2 * width])
    before = of_hidden[:, 2 * width :]
    new = torch.tanh(of_input[:, 2 * width :] + reset * before)
    return new + update * (hidden - new), reset, update, new, hidden, before


def _cell_backward(
    grad: Tensor,
    reset: Tensor,
    update: Tensor,
    new: Tensor,
    hidden: Tensor,
    before: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Give the gradients of both products, of the hidden state and of both biases."""
    of_new = grad * (1 - update) * (1 - new * new)
    of_update = grad * (hidden - new) * (1 - update) * update
    of_reset = of_new * before * (1 - reset) * reset
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    sums = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * update, *sums


def _written(
    graph: Graph, before: Node, function: Callable[..., Any], arguments: Sequence[Any]
) -> tuple[Any, ...]:
    """Write a function of tensors into a program before a node, and give what it makes."""
    values = [given.meta["val"] if isinstance(given, Node) else given for given in arguments]
    traced = make_fx(function, select_decomp_table())(*values).graph
    givers = dict(zip(traced.find_nodes(op="placeholder"), arguments))
    node = before.prev
    with graph.inserting_before(before):
        made = graph.graph_copy(traced, givers)
    while (node := node.next) is not before:
        rewriting.copy_meta(before, node)
    assert isinstance(made, tuple | list)
    return tuple(made)


def _outputs(node: Node) -> list[list[Node]]:
    """Give, for each of five places of what a node returns, those who take it out."""
    found: list[list[Node]] = [[] for _ in range(5)]
    for user in node.users:
        assert user.target is operator.getitem
        found[user.args[1]].append(user)  # type: ignore[index]
    return found


def _replace(graph: Graph, old: Sequence[Node], new: Node | None) -> None:
    for node in old:
        if new is not None:
            node.replace_all_uses_with(new)
        graph.erase_node(node)
