"""Small products of matrices, written so that they fill the device: together, or cut in parts.

Imported only when something is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx as rewriting
from . import matmul_times as kernel_times
from .fx import (
    Ancestry,
    concat_rows,
    insert_call,
    is_row_sum,
    is_transposed,
    operands,
    sort_topologically,
    stack_batch,
)
from .matmul_times import BYTES_PER_US, MatmulTimes, MatrixLayout

_aten = torch.ops.aten
_MM = _aten.mm.default
_PARTS = (2, 4, 8)
# What another way has to gain over the product as it is: measured times are not exact, those of long ones
# are nearly so.
_GAIN, _GAIN_US = 0.93, 0.5
_GAIN_OF_LONG, _GAIN_OF_LONG_US = 0.99, 2.0
# A part of the inner side that is shorter is not worth a product of its own.
_SHORTEST = 32
# A kernel of its own for a sum that nothing can be fused with.
_LAUNCH_US = 2.0
# A product that takes so long fills the device as it is.
_LONG_US = 2000.0
# How much may be held at the same time so that products can run together, or in parts.
_MOST_BYTES = 64 << 20


_TIMES = MatmulTimes()


class BatchAndSplitMatmuls(CustomGraphPass):
    """Write products that leave much of the device idle in the way that was measured fastest.

    Products of different rows with one matrix become one product of all rows. Products of one shape become
    one batch. A product is cut along its inner side, and the sum of the parts is fused into what follows,
    where torch's own way to cut it adds a kernel for the sum.
    """

    def __init__(self, times: MatmulTimes | None = None) -> None:
        self._times = times or _TIMES

    def __call__(self, graph: Graph) -> None:
        if products := _products(graph):
            with _on_device_of(products[0]):
                self._fill(graph)

    def _fill(self, graph: Graph) -> None:
        for group in _alike(graph, by_matrix=True):
            self._rows_together(graph, group)
        for group in _alike(graph, by_matrix=False):
            self._side_by_side(graph, group)
        for product in _products(graph):
            self._cut(graph, product)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__, kernel_times.__file__), "filled products")

    def _rows_together(self, graph: Graph, group: Sequence[Node]) -> None:
        """Write products with one right side as one product of all rows."""
        lefts, rights = zip(*map(operands, group))
        left, right = _form(lefts[0]), _form(rights[0])
        together = self._times.product((len(group) * left[0], left[1], False), right)
        copied_us = 2 * sum(map(_bytes, lefts)) / BYTES_PER_US
        if not together + copied_us < _GAIN * len(group) * self._times.product(left, right):
            return
        with graph.inserting_before(group[0]):
            whole = insert_call(graph, _MM, (concat_rows(graph, lefts), rights[0]))
            for place, product in enumerate(group):
                rows = place * left[0], (place + 1) * left[0]
                product.replace_all_uses_with(insert_call(graph, _aten.slice.Tensor, (whole, 0, *rows)))
        _drop(graph, group)

    def _side_by_side(self, graph: Graph, group: Sequence[Node]) -> None:
        """Write products of one shape as a batch."""
        lefts, rights = zip(*map(operands, group))
        left, right = _form(lefts[0]), _form(rights[0])
        shared = all(matrix is lefts[0] for matrix in lefts)
        loose = [rights] if shared else [lefts, rights]
        copied = [_form(matrices[0]) for matrices in loose if any(map(_lies_elsewhere, matrices))]
        together = self._times.batch(left, right, len(group), shared=shared, copied=copied)
        alone = min(self._times.product(left, right), self._best_cut(group[0])[0])
        if not together < _GAIN * len(group) * alone:
            return
        with graph.inserting_before(group[0]):
            stack = stack_batch(graph, lefts)
            batch = insert_call(graph, _aten.bmm.default, (stack, stack_batch(graph, rights)))
            for place, product in enumerate(group):
                product.replace_all_uses_with(insert_call(graph, _aten.select.int, (batch, 0, place)))
            if all(map(is_transposed, lefts)):
                _sums_together(graph, insert_call(graph, _aten.permute.default, (stack, [0, 2, 1])), lefts)
        _drop(graph, group)

    def _cut(self, graph: Graph, product: Node) -> None:
        """Cut a product along its inner side where that was measured faster."""
        left, right = operands(product)
        whole = self._times.product(_form(left), _form(right))
        taken, parts = self._best_cut(product) if whole < _LONG_US else (math.inf, 1)
        if not taken < _least_gain(whole):
            return
        (rows, inner), columns = left.meta["val"].shape, right.meta["val"].shape[1]
        with graph.inserting_before(product):
            x = insert_call(graph, _aten.view.default, (left, [rows, parts, inner // parts]))
            x = insert_call(graph, _aten.permute.default, (x, [1, 0, 2]))
            y = insert_call(graph, _aten.view.default, (right, [parts, inner // parts, columns]))
            batch = insert_call(graph, _aten.bmm.default, (x, y))
            # Written out, so that it is fused into what reads it.
            total = insert_call(graph, _aten.select.int, (batch, 0, 0))
            for place in range(1, parts):
                part = insert_call(graph, _aten.select.int, (batch, 0, place))
                total = insert_call(graph, _aten.add.Tensor, (total, part))
        product.replace_all_uses_with(total)
        graph.erase_node(product)

    def _best_cut(self, product: Node) -> tuple[float, int]:
        """Give the shortest time that cutting a product takes, with the sum of its parts, and in how many."""
        left, right = map(_form, operands(product))
        inner, size = left[1], _bytes(product)
        is_read = any(user.op == "output" or user.target is _MM for user in product.users)
        # A sum of its own is one more kernel, which reads and writes once more.
        sum_us = _LAUNCH_US + 2 * size / BYTES_PER_US if is_read else 0.0
        found = [(math.inf, 1)]
        for parts in _PARTS:
            if inner % parts == 0 and inner // parts >= _SHORTEST and parts * size <= _MOST_BYTES:
                sums = sum_us + (parts - 1) * size / BYTES_PER_US
                found.append((self._times.cut(left, right, parts) + sums, parts))
        return min(found)


def _least_gain(whole_us: float) -> float:
    """Give the time that another way must stay below to be taken.

    >>> _least_gain(5.0), _least_gain(20.0), _least_gain(500.0)
    (4.5, 18.6, 493.0)
    """
    enough = max(_GAIN * whole_us, _GAIN_OF_LONG * whole_us - _GAIN_OF_LONG_US)
    return min(enough, whole_us - _GAIN_US)


def _sums_together(graph: Graph, stack: Node, transposed: Sequence[Node]) -> None:
    """Sum up the rows of all matrices of a stack at once where each is summed up: gradients of biases."""
    places = {matrix.all_input_nodes[0]: place for place, matrix in enumerate(transposed)}
    # A sum that another matrix of the stack is made from, as in a batch norm, is needed before the stack is.
    needed = rewriting.with_ancestors(places)
    found = [
        (place, user)
        for rows, place in places.items()
        for user in rows.users
        if is_row_sum(user) and user not in needed
    ]
    # What reads the sums may have to wait for the stack.
    if len(found) < 2 or rewriting.draws_random_numbers(graph):
        return
    total = insert_call(graph, _aten.sum.dim_IntList, (stack, [1]))
    for place, user in found:
        keeps = len(user.args) > 2 and user.args[2]
        part = insert_call(graph, _aten.select.int, (total, 0, place))
        user.replace_all_uses_with(insert_call(graph, _aten.unsqueeze.default, (part, 0)) if keeps else part)
        graph.erase_node(user)


def _on_device_of(product: Node) -> AbstractContextManager[Any]:
    device = product.meta["val"].device
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _products(graph: Graph) -> list[Node]:
    """Give the products of a program that may be written in another way."""
    found = graph.find_nodes(op="call_function", target=_MM)
    return [node for node in found if node.users and _is_known(node) and all(map(_is_known, operands(node)))]


def _is_known(matrix: Node) -> bool:
    """Say whether it is known what a matrix will be; passes of torch's own may leave that to be found out."""
    if not rewriting.is_cuda_float32(matrix):
        return False
    return all(isinstance(length, int) and length > 0 for length in matrix.meta["val"].shape)


def _alike(graph: Graph, *, by_matrix: bool) -> Iterator[list[Node]]:
    """Give groups of products of one shape, or with one right side, none of which waits for another."""
    kinds: dict[Any, list[Node]] = {}
    for product in _products(graph):
        left, right = operands(product)
        key = (_form(left), _source(right) if by_matrix else _form(right))
        kinds.setdefault(key, []).append(product)
    ancestry = Ancestry(graph)
    for products in kinds.values():
        most = _MOST_BYTES // sum(map(_bytes, operands(products[0])))
        while len(products) > 1:
            group: list[Node] = []
            for product in products:
                if len(group) < most and ancestry.is_independent(product, group):
                    group.append(product)
            products = [product for product in products if product not in group] if group else []
            if len(group) > 1:
                yield group
                # What was written may have changed who waits for whom.
                ancestry = Ancestry(graph)


def _source(matrix: Any) -> Any:
    return ("exchanged", matrix.args[0]) if is_transposed(matrix) else ("as it is", matrix)


def _form(matrix: Any) -> MatrixLayout:
    rows, columns = matrix.meta["val"].shape
    first, second = matrix.meta["val"].stride()
    return int(rows), int(columns), bool(first == 1 and second != 1)


def _bytes(matrix: Any) -> int:
    return int(matrix.meta["val"].nbytes)


def _lies_elsewhere(matrix: Any) -> bool:
    """Say whether a matrix is given to the program, so that it must be copied to lie beside others."""
    views = _aten.permute.default, _aten.view.default, _aten.reshape.default
    while isinstance(matrix, Node) and matrix.target in views:
        matrix = matrix.args[0]
    return isinstance(matrix, Node) and matrix.op == "placeholder"


def _drop(graph: Graph, group: Sequence[Node]) -> None:
    for product in group:
        graph.erase_node(product)
    sort_topologically(graph)
