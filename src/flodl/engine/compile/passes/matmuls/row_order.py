"""A graph pass that multiplies rows in their storage order, instead of copying them into another order.

`torch.nn.MultiheadAttention` swaps the batch and sequence dimensions, copies, multiplies, and swaps them
back. Imported only to compile.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import fx, strides
from ..fx import insert_call, is_row_sum, is_transposed
from ..strides import StridedView, merge_runs, view_of_source

_aten = torch.ops.aten
_MM, _ADDMM = _aten.mm.default, _aten.addmm.default


class MatmulInStorageOrder(CustomGraphPass):
    """Multiply the rows of a matrix in their storage order, and permute the rows of the result instead.

    A permuted copy is written for the matmul alone, while the kernel that follows can read the result in any
    order. For a sum over rows, their order does not matter.
    """

    def __call__(self, graph: Graph) -> None:
        for target in (_MM, _ADDMM):
            for matmul in _on_cuda(graph, target):
                _reorder_matmul(graph, matmul)
        for matmul in _on_cuda(graph, _MM):
            _reorder_reduction(graph, matmul)
        for total in _on_cuda(graph, _aten.sum.dim_IntList):
            _reorder_sum(graph, total)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__, strides.__file__), "matmul in storage order")


def _on_cuda(graph: Graph, target: Any) -> list[Node]:
    found = graph.find_nodes(op="call_function", target=target)
    return [node for node in found if fx.is_cuda(node) and not node.kwargs]


class _RowOrder:
    """The permutation that brings the rows of a matrix into the storage order of their source."""

    def __init__(self, found: StridedView) -> None:
        self.source = found.source
        runs = merge_runs(found.dims[0])
        self.lengths = [length for length, _ in runs]
        self.permutation = sorted(range(len(runs)), key=lambda index: -runs[index][1])
        self._inverse = sorted(range(len(runs)), key=self.permutation.__getitem__)

    def equals(self, other: _RowOrder | None) -> bool:
        return other is not None and (self.lengths, self.permutation) == (other.lengths, other.permutation)

    def source_matrix(self, graph: Graph, matrix: Node) -> Node:
        """Return the source as a matrix in storage order, without a copy."""
        value, columns = self.source.meta["val"], matrix.meta["val"].shape[1]
        in_memory = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
        permuted = insert_call(graph, _aten.permute.default, (self.source, in_memory), instead_of=matrix)
        return _view(graph, permuted, [value.numel() // columns, columns], matrix)

    def to_storage(self, graph: Graph, matrix: Node) -> Node:
        """Permute the rows of a matrix into storage order."""
        return _permute_rows(graph, matrix, self.lengths, self.permutation)

    def from_storage(self, graph: Graph, matrix: Node) -> Node:
        """Permute rows in storage order into the order of the matrix."""
        lengths = [self.lengths[index] for index in self.permutation]
        return _permute_rows(graph, matrix, lengths, self._inverse)


def _permute_rows(graph: Graph, matrix: Node, lengths: Sequence[int], order: Sequence[int]) -> Node:
    rows, columns = matrix.meta["val"].shape
    split = _view(graph, matrix, [*lengths, columns], matrix)
    permuted = insert_call(graph, _aten.permute.default, (split, [*order, len(order)]), instead_of=matrix)
    form = torch.contiguous_format
    copied = insert_call(graph, _aten.clone.default, (permuted,), instead_of=matrix, memory_format=form)
    return _view(graph, copied, [rows, columns], matrix)


def _view(graph: Graph, value: Node, shape: Sequence[int], instead_of: Node) -> Node:
    return insert_call(graph, _aten.view.default, (value, [*shape]), instead_of=instead_of)


def _order(matrix: Any) -> _RowOrder | None:
    """Return the row order of a matrix that is a permuted copy of all rows of its source, else None."""
    found = view_of_source(matrix) if isinstance(matrix, Node) else None
    if found is None or not found.copied or not found.is_whole or len(found.dims) != 2:
        return None
    runs, columns = map(merge_runs, found.dims)
    in_order = merge_runs(tuple(sorted(runs, key=operator.itemgetter(1), reverse=True)))
    if len(columns) != 1 or columns[0][1] != 1 or len(runs) < 2 or len(in_order) != 1:
        return None
    return _RowOrder(found) if _is_unchanged_in_backward(found.source) else None


def _is_unchanged_in_backward(source: Node) -> bool:
    """Return whether a value is the same in the backward; a mutated buffer may have been cloned before."""
    is_input = source.op == "placeholder" and not fx.is_mutated(source)
    return is_input or fx.owns_memory(source)


def _reorder_matmul(graph: Graph, matmul: Node) -> None:
    *bias, left, right = matmul.args
    order = _order(left)
    is_row_bias = all(isinstance(each, Node) and each.meta["val"].dim() == 1 for each in bias)
    if order is None or not is_row_bias or not _is_read_in_any_order(matmul):
        return
    assert isinstance(left, Node)
    with graph.inserting_before(matmul):
        result = insert_call(
            graph, matmul.target, (*bias, order.source_matrix(graph, left), right), instead_of=matmul
        )
        matmul.replace_all_uses_with(order.from_storage(graph, result))
    graph.erase_node(matmul)


def _reorder_reduction(graph: Graph, matmul: Node) -> None:
    """Reorder the rows that a matmul reduces over, in both operands: weight gradients."""
    left, right = fx.operands(matmul)
    if not is_transposed(left) or (order := _order(right)) is None:
        return
    (rows,) = left.all_input_nodes
    if order.equals(other := _order(rows)):
        assert other is not None
        with graph.inserting_before(matmul):
            reordered = other.source_matrix(graph, rows)
    elif _can_reorder(rows):
        reordered = _reorder_all(graph, rows, order)
    else:
        return
    with graph.inserting_before(matmul):
        transposed = insert_call(graph, _aten.permute.default, (reordered, [1, 0]), instead_of=left)
        matmul.args = transposed, order.source_matrix(graph, right)


def _can_reorder(rows: Node) -> bool:
    """Return whether rows can be computed in another order: they are copied, and only multiplied."""
    found = view_of_source(rows)
    if found is None or not found.copied or not fx.is_pointwise(found.source):
        return False
    transposed = [user for user in rows.users if is_transposed(user)]
    others = [user for user in rows.users if user not in transposed]
    return len(transposed) == 1 and all(is_row_sum(user) or _multiplies(user, rows) for user in others)


def _multiplies(user: Node, rows: Node) -> bool:
    is_matmul = user.target is _MM and user.args[0] is rows and user.args[1] is not rows
    return is_matmul and _is_read_in_any_order(user)


def _reorder_all(graph: Graph, rows: Node, order: _RowOrder) -> Node:
    """Permute rows, and adapt the matmuls and sums that read them."""
    users = list(rows.users)
    with graph.inserting_before(rows.next):
        reordered = order.to_storage(graph, rows)
    for user in users:
        if is_row_sum(user):
            user.update_arg(0, reordered)
        elif user.target is _MM:
            with graph.inserting_before(user):
                result = insert_call(graph, _MM, (reordered, user.args[1]), instead_of=user)
                user.replace_all_uses_with(order.from_storage(graph, result))
    return reordered


def _reorder_sum(graph: Graph, total: Node) -> None:
    rows = total.args[0]
    if is_row_sum(total) and (order := _order(rows)) is not None:
        assert isinstance(rows, Node)
        with graph.inserting_before(total):
            total.update_arg(0, order.source_matrix(graph, rows))


def _is_read_in_any_order(matmul: Node) -> bool:
    """Return whether all readers of a matmul accept any row order for free; a matmul would need a copy."""
    return all(fx.is_pointwise(user) or user.target in fx.ATTENTION for user in strides.readers(matmul))
