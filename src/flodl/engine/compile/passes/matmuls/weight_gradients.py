"""A graph pass: weight gradients of a mixed-precision step in float32; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import fx
from ..fx import insert_call, is_transposed, operands

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_VIEWS = {_aten.permute.default, _aten.view.default, _aten.reshape.default, _aten.slice.Tensor}


@torch.library.custom_op("flodl::mm_to_float32", mutates_args=())
def mm_to_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices in 16 bits, in float32: as it was summed, without rounding."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left.float(), right.float())


@mm_to_float32.register_fake
def _fake(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]), dtype=torch.float32)


class WeightGradientsInFloat32(CustomGraphPass):
    """Let the matmul of a weight gradient write float32, instead of 16 bits that another kernel casts.

    Under autocast, the gradient of each weight is written in 16 bits, read, and written in float32. A matmul
    sums in float32 anyway. Results that are cast and then used further are left alone: there, the cast is
    fused with what reads it.
    """

    def __call__(self, graph: Graph) -> None:
        for cast in list(graph.find_nodes(op="call_function", target=_CAST)):
            chain = _from_matmul(cast)
            if chain is not None and _is_result(cast):
                _write_float32(graph, cast, chain)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "weight gradients in float32")


def _from_matmul(cast: Node) -> list[Node] | None:
    """Return the matmul of a weight gradient and the views up to its cast; None if it is something else."""
    if cast.args[1] is not torch.float32 or not fx.is_cuda(cast):
        return None
    chain: list[Node] = []
    node = cast.args[0]
    while isinstance(node, Node) and len(node.users) == 1:
        chain.insert(0, node)
        if node.target is _aten.mm.default:
            is_narrow = node.meta["val"].dtype in fx.NARROW_TYPES
            return chain if is_narrow and _is_transposed(operands(node)[0]) else None
        if node.target not in _VIEWS:
            return None
        node = node.args[0]
    return None


def _is_transposed(matrix: Node) -> bool:
    """Return whether a matrix is transposed, in this program or in the one that computed it."""
    if is_transposed(matrix):
        return True
    value = matrix.meta["val"]
    return matrix.op == "placeholder" and value.dim() == 2 and value.stride(0) == 1 and value.stride(1) != 1


def _is_result(cast: Node) -> bool:
    """Return whether a value, or a view of it, is a result of the program and nothing else."""
    is_read = bool(cast.users)
    return is_read and all(
        user.op == "output" or (user.target in _VIEWS and _is_result(user)) for user in cast.users
    )


def _write_float32(graph: Graph, cast: Node, chain: list[Node]) -> None:
    with graph.inserting_before(cast):
        new = insert_call(
            graph, torch.ops.flodl.mm_to_float32.default, operands(chain[0]), instead_of=chain[0]
        )
        for view in chain[1:]:
            new = insert_call(graph, view.target, (new, *view.args[1:]), instead_of=view)
    cast.replace_all_uses_with(new)
    graph.eliminate_dead_code()
