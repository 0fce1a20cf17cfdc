"""A graph pass: one kernel completes all gradients that are sums over rows; imported only to compile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import concatenations, fx
from .fx import insert_call

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_RESHAPES = {_aten.view.default, _aten.reshape.default, _aten.squeeze.dim, _aten.squeeze.dims}
# Torch's compiler sums fewer rows in one kernel.
_MIN_ROWS = 1024
_MIN_PARTS, _ROWS_PER_PART = 32, 128
_MIN_SUMS = 3
# The kernel of Adam reads vectors of four numbers.
_ALIGNED = 4


class SumColumnsTogether(CustomGraphPass):
    """Add up the partial sums of all gradients that are sums over rows in a single kernel.

    The gradient of a bias is a sum over rows, and so are those of the weight and bias of a layer
    normalization. Torch's compiler sums parts of the rows in a first kernel, which is usually fused with what
    computes them, and adds the parts in a second kernel: 98 of these take 0.23 of the 9.9 ms of a step of
    GPT-2 on an H200. Here, the parts of all sums are written next to each other. Nothing is rounded to
    16 bits in between.
    """

    def __call__(self, graph: Graph) -> None:
        by_parts: dict[int, list[_ColumnSum]] = {}
        for found in _column_sums(graph):
            by_parts.setdefault(found.parts, []).append(found)
        for parts, sums in by_parts.items():
            if len(sums) >= _MIN_SUMS:
                _sum_together(graph, parts, sums)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, concatenations.__file__, fx.__file__), "columns summed together")


@dataclass(frozen=True)
class _ColumnSum:
    """A sum over the rows of a matrix, and the result of the program that it becomes."""

    node: Node
    result: Node
    parts: int
    rows: int
    columns: int


def _column_sums(graph: Graph) -> Iterator[_ColumnSum]:
    for node in graph.find_nodes(op="call_function", target=_aten.sum.dim_IntList):
        result = _result(node)
        if result is None or not isinstance(node.args[0], Node) or not isinstance(node.args[1], list | tuple):
            continue
        value = node.args[0].meta["val"]
        if not value.is_floating_point() or not all(isinstance(size, int) for size in value.shape):
            continue
        count = len(node.args[1])
        rows, columns = math.prod(value.shape[:count]), math.prod(value.shape[count:])
        are_first = sorted(dim % value.dim() for dim in node.args[1]) == [*range(count)]
        if not are_first or not 0 < count < value.dim() or rows < _MIN_ROWS or columns % _ALIGNED:
            continue
        if (parts := _parts(rows)) is not None:
            yield _ColumnSum(node, result, parts, rows, columns)


def _result(node: Node) -> Node | None:
    """Return the float32 output of the program that a sum becomes after casts and reshapes, or None."""
    while len(node.users) == 1 and (user := next(iter(node.users))).target in {*_RESHAPES, _CAST}:
        if not user.meta["val"].is_floating_point():
            return None
        node = user
    is_result = bool(node.users) and all(user.op == "output" for user in node.users)
    return node if is_result and fx.is_cuda_float32(node) else None


def _parts(rows: int) -> int | None:
    """Return into how many parts of about equal work the rows of a sum are divided; None if they cannot be.

    >>> _parts(4096), _parts(32 * 197), _parts(1024), _parts(8191)
    (32, 32, 32, None)
    """
    wanted = max(_MIN_PARTS, rows // _ROWS_PER_PART)
    divisors = [parts for parts in range(wanted // 2, 2 * wanted + 1) if rows % parts == 0]
    return min(divisors, key=lambda parts: abs(math.log(parts / wanted)), default=None)


def _sum_together(graph: Graph, parts: int, sums: Sequence[_ColumnSum]) -> None:
    partial = []
    for each in sums:
        source = each.node.args[0]
        assert isinstance(source, Node)
        shape = [parts, each.rows // parts, each.columns]
        with graph.inserting_before(each.node):
            rows = insert_call(graph, _aten.reshape.default, (source, shape))
            partial.append(insert_call(graph, _aten.sum.dim_IntList, (rows, [1]), dtype=torch.float32))
    with graph.inserting_before(graph.output_node()):
        together = insert_call(graph, torch.ops.flodl.concat.default, (partial, 1))
        total = insert_call(graph, _aten.sum.dim_IntList, (together, [0]))
        ends = itertools.accumulate(each.columns for each in sums)
        for each, end in zip(sums, ends, strict=True):
            own = insert_call(graph, _aten.slice.Tensor, (total, 0, end - each.columns, end))
            shape = [*each.result.meta["val"].shape]
            each.result.replace_all_uses_with(insert_call(graph, _aten.view.default, (own, shape)))
    graph.eliminate_dead_code()
