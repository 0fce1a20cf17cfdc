"""A graph pass that batches small matmuls or splits them along K, so that they fill the device.

Imported only to compile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import fx
from ..fx import (
    Ancestry,
    concat_rows,
    insert_call,
    is_row_sum,
    is_transposed,
    operands,
    sort_topologically,
    stack_batch,
)
from . import times
from .times import BYTES_PER_US, MatmulTimes, MatrixLayout

_aten = torch.ops.aten
_MM = _aten.mm.default
_PARTS = (2, 4, 8)
# The gain over the plain matmul that is required: measured times are noisy, less so for long matmuls.
_GAIN, _GAIN_US = 0.93, 0.5
_LONG_GAIN, _LONG_GAIN_US = 0.99, 2.0
# The shortest part of K that is worth its own matmul.
MIN_PART = 32
# A separate kernel for a sum that cannot be fused.
_LAUNCH_US = 2.0
# A matmul that takes this long fills the device anyway.
_LONG_US = 2000.0
# The memory that batched or split matmuls may hold at the same time.
MAX_BYTES = 64 << 20


_TIMES = MatmulTimes()


class BatchAndSplitMatmuls(CustomGraphPass):
    """Rewrite matmuls that leave much of the device idle in the form that was measured fastest.

    Matmuls of different rows with one matrix become one matmul of all rows. Matmuls of one shape become one
    batched matmul. A matmul is split along K, and the sum of the parts is fused into the kernel that follows,
    while torch's own split-K adds a kernel for the sum.
    """

    def __init__(self, times: MatmulTimes | None = None) -> None:
        self._times = times or _TIMES

    def __call__(self, graph: Graph) -> None:
        if matmuls := _matmuls(graph):
            with _on_device_of(matmuls[0]):
                self._fill(graph)

    def _fill(self, graph: Graph) -> None:
        for group in _groups(graph, by_matrix=True):
            self._merge_rows(graph, group)
        for group in _groups(graph, by_matrix=False):
            self._batch(graph, group)
        for matmul in _matmuls(graph):
            self._split_k(graph, matmul)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__, times.__file__), "batched and split matmuls")

    def _merge_rows(self, graph: Graph, group: Sequence[Node]) -> None:
        """Rewrite matmuls with one right operand as one matmul of all rows."""
        lefts, rights = zip(*map(operands, group))
        left, right = _layout(lefts[0]), _layout(rights[0])
        together = self._times.matmul((len(group) * left[0], left[1], False), right)
        copied_us = 2 * sum(map(_bytes, lefts)) / BYTES_PER_US
        if not together + copied_us < _GAIN * len(group) * self._times.matmul(left, right):
            return
        with graph.inserting_before(group[0]):
            whole = insert_call(graph, _MM, (concat_rows(graph, lefts), rights[0]))
            for index, matmul in enumerate(group):
                rows = index * left[0], (index + 1) * left[0]
                matmul.replace_all_uses_with(insert_call(graph, _aten.slice.Tensor, (whole, 0, *rows)))
        _erase(graph, group)

    def _batch(self, graph: Graph, group: Sequence[Node]) -> None:
        """Rewrite matmuls of one shape as a batched matmul."""
        lefts, rights = zip(*map(operands, group))
        left, right = _layout(lefts[0]), _layout(rights[0])
        shared = all(matrix is lefts[0] for matrix in lefts)
        stacked = [rights] if shared else [lefts, rights]
        copied = [_layout(matrices[0]) for matrices in stacked if any(map(_is_input, matrices))]
        together = self._times.batch(left, right, len(group), shared=shared, copied=copied)
        alone = min(self._times.matmul(left, right), self._best_split(group[0])[0])
        if not together < _GAIN * len(group) * alone:
            return
        with graph.inserting_before(group[0]):
            stack = stack_batch(graph, lefts)
            batch = insert_call(graph, _aten.bmm.default, (stack, stack_batch(graph, rights)))
            for index, matmul in enumerate(group):
                matmul.replace_all_uses_with(insert_call(graph, _aten.select.int, (batch, 0, index)))
            if all(map(is_transposed, lefts)):
                _merge_row_sums(graph, insert_call(graph, _aten.permute.default, (stack, [0, 2, 1])), lefts)
        _erase(graph, group)

    def _split_k(self, graph: Graph, matmul: Node) -> None:
        """Split a matmul along K if that was measured faster."""
        left, right = operands(matmul)
        whole = self._times.matmul(_layout(left), _layout(right))
        taken, parts = self._best_split(matmul) if whole < _LONG_US else (math.inf, 1)
        if not taken < _time_to_beat(whole):
            return
        (rows, inner), columns = left.meta["val"].shape, right.meta["val"].shape[1]
        with graph.inserting_before(matmul):
            x = insert_call(graph, _aten.view.default, (left, [rows, parts, inner // parts]))
            x = insert_call(graph, _aten.permute.default, (x, [1, 0, 2]))
            y = insert_call(graph, _aten.view.default, (right, [parts, inner // parts, columns]))
            batch = insert_call(graph, _aten.bmm.default, (x, y))
            # Single additions, so that they are fused into the reader.
            total = insert_call(graph, _aten.select.int, (batch, 0, 0))
            for index in range(1, parts):
                part = insert_call(graph, _aten.select.int, (batch, 0, index))
                total = insert_call(graph, _aten.add.Tensor, (total, part))
        matmul.replace_all_uses_with(total)
        graph.erase_node(matmul)

    def _best_split(self, matmul: Node) -> tuple[float, int]:
        """Return the shortest time of a split-K matmul with the sum of its parts, and the number of parts."""
        left, right = map(_layout, operands(matmul))
        inner, size = left[1], _bytes(matmul)
        is_read = any(user.op == "output" or user.target is _MM for user in matmul.users)
        # A separate sum is one more kernel, with one more read and write.
        sum_us = _LAUNCH_US + 2 * size / BYTES_PER_US if is_read else 0.0
        found = [(math.inf, 1)]
        for parts in _PARTS:
            if inner % parts == 0 and inner // parts >= MIN_PART and parts * size <= MAX_BYTES:
                sums = sum_us + (parts - 1) * size / BYTES_PER_US
                found.append((self._times.split_k(left, right, parts) + sums, parts))
        return min(found)


def _time_to_beat(whole_us: float) -> float:
    """Return the time below which another form is chosen.

    >>> _time_to_beat(5.0), _time_to_beat(20.0), _time_to_beat(500.0)
    (4.5, 18.6, 493.0)
    """
    enough = max(_GAIN * whole_us, _LONG_GAIN * whole_us - _LONG_GAIN_US)
    return min(enough, whole_us - _GAIN_US)


def _merge_row_sums(graph: Graph, stack: Node, transposed: Sequence[Node]) -> None:
    """Sum the rows of all matrices of a stack with one kernel: bias gradients."""
    indices = {matrix.all_input_nodes[0]: index for index, matrix in enumerate(transposed)}
    # A sum from which another matrix of the stack is computed, as in batch norm, is needed before the stack.
    needed = fx.with_ancestors(indices)
    found = [
        (index, user)
        for rows, index in indices.items()
        for user in rows.users
        if is_row_sum(user) and user not in needed
    ]
    # Readers of the sums may have to move behind the stack.
    if len(found) < 2 or fx.draws_random_numbers(graph):
        return
    total = insert_call(graph, _aten.sum.dim_IntList, (stack, [1]))
    for index, user in found:
        keepdim = len(user.args) > 2 and user.args[2]
        part = insert_call(graph, _aten.select.int, (total, 0, index))
        user.replace_all_uses_with(
            insert_call(graph, _aten.unsqueeze.default, (part, 0)) if keepdim else part
        )
        graph.erase_node(user)


def _on_device_of(matmul: Node) -> AbstractContextManager[Any]:
    device = matmul.meta["val"].device
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _matmuls(graph: Graph) -> list[Node]:
    """Return the matmuls of a graph that may be rewritten."""
    found = graph.find_nodes(op="call_function", target=_MM)
    return [node for node in found if node.users and _is_known(node) and all(map(_is_known, operands(node)))]


def _is_known(matrix: Node) -> bool:
    """Return whether the shape of a matrix is known; torch's own passes may leave it symbolic or unset."""
    if not fx.is_cuda_float32(matrix):
        return False
    return all(isinstance(length, int) and length > 0 for length in matrix.meta["val"].shape)


def _groups(graph: Graph, *, by_matrix: bool) -> Iterator[list[Node]]:
    """Yield groups of independent matmuls with one shape, or with one right operand."""
    kinds: dict[Any, list[Node]] = {}
    for matmul in _matmuls(graph):
        left, right = operands(matmul)
        key = (_layout(left), _source(right) if by_matrix else _layout(right))
        kinds.setdefault(key, []).append(matmul)
    ancestry = Ancestry(graph)
    for matmuls in kinds.values():
        most = MAX_BYTES // sum(map(_bytes, operands(matmuls[0])))
        while len(matmuls) > 1:
            group: list[Node] = []
            for matmul in matmuls:
                if len(group) < most and ancestry.is_independent(matmul, group):
                    group.append(matmul)
            matmuls = [matmul for matmul in matmuls if matmul not in group] if group else []
            if len(group) > 1:
                yield group
                # The rewrite may have changed the dependencies.
                ancestry = Ancestry(graph)


def _source(matrix: Any) -> Any:
    return ("transposed", matrix.args[0]) if is_transposed(matrix) else ("plain", matrix)


def _layout(matrix: Any) -> MatrixLayout:
    rows, columns = matrix.meta["val"].shape
    first, second = matrix.meta["val"].stride()
    return int(rows), int(columns), bool(first == 1 and second != 1)


def _bytes(matrix: Any) -> int:
    return int(matrix.meta["val"].nbytes)


def _is_input(matrix: Any) -> bool:
    """Return whether a matrix is an input of the graph, which must be copied into a batch."""
    views = _aten.permute.default, _aten.view.default, _aten.reshape.default
    while isinstance(matrix, Node) and matrix.target in views:
        matrix = matrix.args[0]
    return isinstance(matrix, Node) and matrix.op == "placeholder"


def _erase(graph: Graph, group: Sequence[Node]) -> None:
    for matmul in group:
        graph.erase_node(matmul)
    sort_topologically(graph)
