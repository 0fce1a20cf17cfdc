"""A graph pass that aligns the rows of large matrices for matmuls in 16 bits; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import cross_entropy, fx
from ..fx import insert_call, is_transposed, operands

_aten = torch.ops.aten
# Kernels of matmuls read 16 bytes at a time.
_MULTIPLE = 8
# Smaller dimensions, such as a few classes, are left to torch.
_LARGE = 1024
_ROW_VIEWS = {_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default}


class AlignMatmuls(CustomGraphPass):
    """Pad dimensions of matmuls that are large and no multiple of 8, such as a vocabulary of 50,257.

    Torch's compiler pads the gradient of such logits in a kernel of its own, and computes the loss from rows
    that are not aligned: 1.1 ms of the 12 ms that a step of GPT-2 takes on an H200. Padded here, before other
    passes, the gradient is computed into padded memory, and the logits are a part of a padded result. flodl's
    own cross entropy writes its gradient into padded memory by itself.
    """

    def __call__(self, graph: Graph) -> None:
        padded: dict[tuple[Node, int], Node] = {}
        for node in list(graph.find_nodes(op="call_function", target=_aten.mm.default)):
            if _is_16_bit(node):
                _align(graph, node, padded)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__, cross_entropy.__file__), "aligned matmuls")


def _is_16_bit(node: Node) -> bool:
    # Symbolic shapes have no fixed padding.
    has_fixed_sizes = all(isinstance(size, int) for each in operands(node) for size in each.meta["val"].shape)
    return fx.is_narrow(node) and has_fixed_sizes


def _align(graph: Graph, matmul: Node, padded: dict[tuple[Node, int], Node]) -> None:
    left, right = operands(matmul)
    (rows, inner), columns = left.meta["val"].shape, right.meta["val"].shape[1]
    # Rows only matter if they are contiguous in memory, as in the gradient of a weight.
    pads_rows = is_transposed(left) and _is_unaligned(rows)
    if not (pads_rows or _is_unaligned(inner) or _is_unaligned(columns)):
        return
    with graph.inserting_before(matmul):
        if _is_unaligned(inner):
            left, right = _pad(graph, left, 1, padded), _pad(graph, right, 0, padded)
        if pads_rows:
            left = _pad(graph, left, 0, padded)
        if _is_unaligned(columns):
            right = _pad(graph, right, 1, padded)
        result = insert_call(graph, _aten.mm.default, (left, right), instead_of=matmul)
        for dim, size in enumerate((rows, columns)):
            if result.meta["val"].shape[dim] != size:
                result = insert_call(graph, _aten.slice.Tensor, (result, dim, 0, size), instead_of=matmul)
    matmul.replace_all_uses_with(result)
    graph.erase_node(matmul)


def _is_unaligned(size: int) -> bool:
    return size >= _LARGE and size % _MULTIPLE != 0


def _pad(graph: Graph, node: Node, dim: int, padded: dict[tuple[Node, int], Node]) -> Node:
    """Return a matrix with zeros appended; matmuls that read the same matrix share it."""
    if is_transposed(node):
        base = node.args[0]
        assert isinstance(base, Node)
        inside = _pad(graph, base, 1 - dim, padded)
        return insert_call(graph, _aten.permute.default, (inside, [1, 0]), instead_of=node)
    if dim == 1 and (backward := _cross_entropy_backward(node)) is not None:
        return _write_padded(graph, backward)
    if (node, dim) not in padded:
        extra = -node.meta["val"].shape[dim] % _MULTIPLE
        amounts = [0, extra] if dim == 1 else [0, 0, 0, extra]
        with graph.inserting_after(node):
            padded[node, dim] = insert_call(
                graph, _aten.constant_pad_nd.default, (node, amounts), instead_of=node
            )
    return padded[node, dim]


def _cross_entropy_backward(matrix: Node) -> Node | None:
    """Return the call of flodl's cross entropy that computed a matrix; None if something else did.

    Views in between are looked through: they divide the rows into a batch and positions, and merge them.
    """
    node: Any = matrix
    while node.target in _ROW_VIEWS:
        node = node.args[0]
    if node.meta["val"].shape != matrix.meta["val"].shape:
        return None
    if node.target is _aten.slice.Tensor and node.args[1:] == (1, 0, node.meta["val"].shape[1]):
        node = node.args[0]
    return node if node.target is cross_entropy.BACKWARD else None


def _write_padded(graph: Graph, backward: Node) -> Node:
    """Let a call of flodl's cross entropy write its gradient with zeros appended to each row."""
    *arguments, columns = backward.args
    assert isinstance(columns, int)
    if columns % _MULTIPLE == 0:
        return backward
    with graph.inserting_before(backward):
        whole = insert_call(
            graph, cross_entropy.BACKWARD, (*arguments, columns + -columns % _MULTIPLE), instead_of=backward
        )
        part = insert_call(graph, _aten.slice.Tensor, (whole, 1, 0, columns), instead_of=backward)
    backward.replace_all_uses_with(part)
    graph.erase_node(backward)
    return whole
