"""A graph pass: gradients of lookups without atomic additions; imported only to compile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx
from .fx import insert_call

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
# With fewer values per row of the table, atomic additions rarely wait for each other.
_MIN_REPEATS = 64
_MAX_COMPARISONS = 1 << 27
# Elements of the matrices of zeros and ones.
_MAX_ONE_HOT = 1 << 28
_MIN_BATCH = 16


class SumRepeatedPositions(CustomGraphPass):
    """Compute the gradients of lookups in small tables without atomic additions.

    Torch adds each value to its position in memory, one after the other where positions repeat: on an H200,
    0.5 ms of the 7.4 ms of a step of T5-small for a table of 32 rows, and 2.6 of the 10 ms of six layers of
    DeBERTa, whose attention looks up relative positions.

    - The gradient of an embedding with few rows: each row sums the values at its positions.
    - A `scatter_add` along the last dimension of values in 16 bits, with the same index for each element of a
      batch: a matmul with a matrix of zeros and ones, which sums in float32.
    """

    def __call__(self, graph: Graph) -> None:
        for node in _embedding_gradients(graph):
            _sum_each_row(graph, node)
        one_hots: dict[tuple[Node, int, torch.dtype], Node] = {}
        for node in graph.find_nodes(op="call_function", target=_aten.scatter_add.default):
            if (positions := _shared_positions(node)) is not None:
                _multiply(graph, node, positions, one_hots)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "repeated positions")


def _embedding_gradients(graph: Graph) -> Iterator[Node]:
    """Yield gradients of embeddings with few rows, which many positions share."""
    for target in (_aten.index_put.default, _aten._unsafe_masked_index_put_accumulate.default):
        for node in list(graph.find_nodes(op="call_function", target=target)):
            is_embedding = str(node.meta.get("original_aten")) == str(_aten.embedding_dense_backward.default)
            if is_embedding and fx.is_cuda(node) and fx.is_zeros(node.args[0]) and _has_few_rows(node):
                yield node


def _index(node: Node) -> Node | None:
    """Return the only index of a node that puts values at positions."""
    indices = node.args[1] if node.target is _aten.index_put.default else node.args[2]
    return indices[0] if isinstance(indices, list | tuple) and len(indices) == 1 else None  # type: ignore[return-value]


def _has_few_rows(node: Node) -> bool:
    index, table = _index(node), node.meta["val"]
    if index is None or index.meta["val"].dtype is torch.bool or table.numel() == 0:
        return False
    count = index.meta["val"].numel()
    has_fixed_sizes = all(isinstance(size, int) for size in (count, *table.shape))
    return bool(
        has_fixed_sizes
        and count >= _MIN_REPEATS * table.shape[0]
        and count * table.numel() <= _MAX_COMPARISONS
    )


def _count(graph: Graph, length: int, instead_of: Node) -> Node:
    """Return the numbers from 0 up to a length, on the device of a node."""
    device = instead_of.meta["val"].device
    named = {"start": 0, "step": 1, "dtype": torch.int64, "device": device, "requires_grad": False}
    return insert_call(graph, torch.ops.prims.iota.default, (length,), instead_of=instead_of, **named)


def _sum_each_row(graph: Graph, node: Node) -> None:
    """Replace the gradient of an embedding by a sum over all positions for each row."""
    index, table = _index(node), node.meta["val"]
    assert index is not None
    count, width = index.meta["val"].numel(), math.prod(table.shape[1:])

    def call(target: Any, *arguments: Any, **named: Any) -> Node:
        return insert_call(graph, target, arguments, instead_of=node, **named)

    with graph.inserting_before(node), fx.fake_mode(node):
        zero = call(_aten.full.default, [], 0, dtype=table.dtype, device=table.device)
        if node.target is _aten.index_put.default:
            values = node.args[2]
        else:
            values = call(_aten.where.self, node.args[1], node.args[3], zero)
        rows = _count(graph, table.shape[0], node)
        is_row = call(
            _aten.eq.Tensor,
            call(_aten.reshape.default, index, [1, count, 1]),
            call(_aten.view.default, rows, [table.shape[0], 1, 1]),
        )
        values = call(_aten.reshape.default, values, [1, count, width])
        chosen = call(_aten.where.self, is_row, values, zero)
        total = call(_aten.view.default, call(_aten.sum.dim_IntList, chosen, [1]), list(table.shape))
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _shared_positions(node: Node) -> Node | None:
    """Return the matrix of positions that all elements of a batch share, if a matmul is faster."""
    into, dim, index, values = node.args
    result = node.meta["val"]
    if not fx.is_narrow(node) or node.kwargs or not fx.is_zeros(into):
        return None
    if not isinstance(index, Node) or index.target is not _aten.expand.default or result.dim() < 3:
        return None
    positions = index.args[0]
    assert isinstance(positions, Node)
    assert isinstance(values, Node)
    shape = index.meta["val"].shape
    if not all(isinstance(size, int) for size in shape):
        return None
    is_last = dim in (-1, result.dim() - 1)
    # As in the gradient of a gather, every value has a position.
    is_whole = shape == values.meta["val"].shape and shape[:-1] == result.shape[:-1]
    is_shared = positions.meta["val"].numel() == shape[-2] * shape[-1]
    batch = math.prod(shape[:-2])
    one_hot = shape[-2] * shape[-1] * result.shape[-1]
    is_small = one_hot <= min(_MAX_ONE_HOT, 4 * (result.numel() + values.meta["val"].numel()))
    return positions if is_last and is_whole and is_shared and batch >= _MIN_BATCH and is_small else None


def _multiply(
    graph: Graph, node: Node, positions: Node, one_hots: dict[tuple[Node, int, torch.dtype], Node]
) -> None:
    """Replace a `scatter_add` by a matmul of its values with ones at their positions."""
    values, result = node.args[3], node.meta["val"]
    assert isinstance(values, Node)
    *batch, rows, columns = values.meta["val"].shape
    width = result.shape[-1]

    def call(target: Any, *arguments: Any, **named: Any) -> Node:
        return insert_call(graph, target, arguments, instead_of=node, **named)

    with graph.inserting_before(node), fx.fake_mode(node):
        key = positions, width, result.dtype
        if key not in one_hots:
            there = call(_aten.reshape.default, positions, [rows, columns, 1])
            places = _count(graph, width, node)
            one_hots[key] = call(_CAST, call(_aten.eq.Tensor, there, places), result.dtype)
        flat = call(_aten.reshape.default, values, [math.prod(batch), rows, columns])
        by_row = call(_aten.permute.default, flat, [1, 0, 2])
        if 1 not in by_row.meta["val"].stride()[1:]:
            # A matmul would copy it element by element, which is slow.
            by_row = fx.with_strides(graph, by_row, instead_of=node)
        product = call(_aten.bmm.default, by_row, one_hots[key])
        total = call(
            _aten.reshape.default, call(_aten.permute.default, product, [1, 0, 2]), [*batch, rows, width]
        )
    node.replace_all_uses_with(total)
    graph.erase_node(node)
