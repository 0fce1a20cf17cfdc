"""Products of rows in the order in which they lie, instead of copies in another order.

`torch.nn.MultiheadAttention` exchanges the batch and the positions, copies, multiplies, and exchanges them
back. Imported only when something is compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx as rewriting
from . import strides
from .fx import insert_call, is_row_sum, is_transposed
from .strides import StridedView, merge_runs, view_of_source

_aten = torch.ops.aten
_MM, _ADDMM = _aten.mm.default, _aten.addmm.default


class MatmulInStorageOrder(CustomGraphPass):
    """Multiply the rows of a matrix in the order in which they lie, and turn the product around instead.

    A copy that brings rows into another order is written for the product alone, while the product is read in
    whatever order by the kernel that follows. Where rows are summed up, their order does not matter.
    """

    def __call__(self, graph: Graph) -> None:
        for target in (_MM, _ADDMM):
            for product in _on_cuda(graph, target):
                _turn_product(graph, product)
        for product in _on_cuda(graph, _MM):
            _turn_inside(graph, product)
        for total in _on_cuda(graph, _aten.sum.dim_IntList):
            _turn_sum(graph, total)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__, strides.__file__), "rows as they lie")


def _on_cuda(graph: Graph, target: Any) -> list[Node]:
    found = graph.find_nodes(op="call_function", target=target)
    return [node for node in found if rewriting.is_cuda(node) and not node.kwargs]


class _Order:
    """How the rows of a matrix are to be turned so that they lie as their source does."""

    def __init__(self, found: StridedView) -> None:
        self.source = found.source
        runs = merge_runs(found.sides[0])
        self.lengths = [length for length, _ in runs]
        self.turned = sorted(range(len(runs)), key=lambda place: -runs[place][1])
        self._back = sorted(range(len(runs)), key=self.turned.__getitem__)

    def is_that_of(self, other: _Order | None) -> bool:
        return other is not None and (self.lengths, self.turned) == (other.lengths, other.turned)

    def flat(self, graph: Graph, matrix: Node) -> Node:
        """Give the source in the place of a matrix, without a copy."""
        value, columns = self.source.meta["val"], matrix.meta["val"].shape[1]
        as_it_lies = sorted(range(value.dim()), key=lambda side: -value.stride(side))
        turned = insert_call(graph, _aten.permute.default, (self.source, as_it_lies), instead_of=matrix)
        return _viewed(graph, turned, [value.numel() // columns, columns], matrix)

    def turn(self, graph: Graph, matrix: Node) -> Node:
        """Bring the rows of a matrix into the order of the source."""
        return _turned(graph, matrix, self.lengths, self.turned)

    def turn_back(self, graph: Graph, matrix: Node) -> Node:
        """Bring rows in the order of the source into the order that was wanted."""
        return _turned(graph, matrix, [self.lengths[place] for place in self.turned], self._back)


def _turned(graph: Graph, matrix: Node, lengths: Sequence[int], order: Sequence[int]) -> Node:
    rows, columns = matrix.meta["val"].shape
    apart = _viewed(graph, matrix, [*lengths, columns], matrix)
    turned = insert_call(graph, _aten.permute.default, (apart, [*order, len(order)]), instead_of=matrix)
    form = torch.contiguous_format
    copied = insert_call(graph, _aten.clone.default, (turned,), instead_of=matrix, memory_format=form)
    return _viewed(graph, copied, [rows, columns], matrix)


def _viewed(graph: Graph, value: Node, shape: Sequence[int], instead_of: Node) -> Node:
    return insert_call(graph, _aten.view.default, (value, [*shape]), instead_of=instead_of)


def _order(matrix: Any) -> _Order | None:
    """Say how rows are to be turned, where they are a copy of all rows of something in another order."""
    found = view_of_source(matrix) if isinstance(matrix, Node) else None
    if found is None or not found.copied or not found.is_whole or len(found.sides) != 2:
        return None
    runs, columns = map(merge_runs, found.sides)
    in_order = merge_runs(tuple(sorted(runs, key=operator.itemgetter(1), reverse=True)))
    if len(columns) != 1 or columns[0][1] != 1 or len(runs) < 2 or len(in_order) != 1:
        return None
    return _Order(found) if _stays(found.source) else None


def _stays(source: Node) -> bool:
    """Say whether a value is the same in the backward; a buffer may have been copied to keep what it was."""
    is_given = source.op == "placeholder" and not rewriting.is_mutated(source)
    return is_given or rewriting.owns_memory(source)


def _turn_product(graph: Graph, product: Node) -> None:
    *bias, left, right = product.args
    order = _order(left)
    is_for_all_rows = all(isinstance(each, Node) and each.meta["val"].dim() == 1 for each in bias)
    if order is None or not is_for_all_rows or not _is_read_in_any_order(product):
        return
    assert isinstance(left, Node)
    with graph.inserting_before(product):
        made = insert_call(graph, product.target, (*bias, order.flat(graph, left), right), instead_of=product)
        product.replace_all_uses_with(order.turn_back(graph, made))
    graph.erase_node(product)


def _turn_inside(graph: Graph, product: Node) -> None:
    """Turn the rows over which a product sums up, which are those of both sides: gradients of weights."""
    left, right = rewriting.operands(product)
    if not is_transposed(left) or (order := _order(right)) is None:
        return
    (rows,) = left.all_input_nodes
    if order.is_that_of(other := _order(rows)):
        assert other is not None
        with graph.inserting_before(product):
            turned = other.flat(graph, rows)
    elif _is_free(rows):
        turned = _turn_all(graph, rows, order)
    else:
        return
    with graph.inserting_before(product):
        transposed = insert_call(graph, _aten.permute.default, (turned, [1, 0]), instead_of=left)
        product.args = transposed, order.flat(graph, right)


def _is_free(rows: Node) -> bool:
    """Say whether rows can as well be computed in another order: they are copied, and only multiplied."""
    found = view_of_source(rows)
    if found is None or not found.copied or not rewriting.is_pointwise(found.source):
        return False
    transposed = [user for user in rows.users if is_transposed(user)]
    others = [user for user in rows.users if user not in transposed]
    return len(transposed) == 1 and all(is_row_sum(user) or _multiplies(user, rows) for user in others)


def _multiplies(user: Node, rows: Node) -> bool:
    is_product = user.target is _MM and user.args[0] is rows and user.args[1] is not rows
    return is_product and _is_read_in_any_order(user)


def _turn_all(graph: Graph, rows: Node, order: _Order) -> Node:
    """Bring rows into another order, and with them what they are multiplied with and their sum."""
    users = list(rows.users)
    with graph.inserting_before(rows.next):
        turned = order.turn(graph, rows)
    for user in users:
        if is_row_sum(user):
            user.update_arg(0, turned)
        elif user.target is _MM:
            with graph.inserting_before(user):
                made = insert_call(graph, _MM, (turned, user.args[1]), instead_of=user)
                user.replace_all_uses_with(order.turn_back(graph, made))
    return turned


def _turn_sum(graph: Graph, total: Node) -> None:
    rows = total.args[0]
    if is_row_sum(total) and (order := _order(rows)) is not None:
        assert isinstance(rows, Node)
        with graph.inserting_before(total):
            total.update_arg(0, order.flat(graph, rows))


def _is_read_in_any_order(product: Node) -> bool:
    """Say whether what reads a product reads it in another order for nothing; a product would need a copy."""
    return all(
        rewriting.is_pointwise(user) or user.target in rewriting.ATTENTION for user in _readers(product)
    )


def _readers(node: Node) -> Iterator[Node]:
    """Give what reads a value, also as a view."""
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if strides.is_view(user):
                waiting.append(user)
            else:
                yield user
