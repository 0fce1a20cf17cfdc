"""A graph pass: matmuls of values that were widened from 16 bits; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import fx
from ..fx import insert_call, operands
from . import weight_gradients

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_PERMUTES = {_aten.permute.default}
# They change neither values nor their precision.
_VIEWS = {
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.expand.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.slice.Tensor,
    _aten.clone.default,
}


@torch.library.custom_op("flodl::bmm_to_float32", mutates_args=())
def bmm_to_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of two batches of matrices in 16 bits, in float32: as they were summed."""
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


@bmm_to_float32.register_fake
def _fake(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[1], right.shape[2]), dtype=torch.float32)


# The same matmuls of operands in 16 bits.
_TO_FLOAT32_FORM: dict[Any, Any] = {
    _aten.mm.default: torch.ops.flodl.mm_to_float32.default,
    _aten.bmm.default: torch.ops.flodl.bmm_to_float32.default,
}


class MatmulsIn16Bits(CustomGraphPass):
    """Let a float32 matmul whose operands have 16 bits of precision use the fast units for 16 bits.

    Attention that no fused kernel supports, as with the position bias of T5, widens its 16-bit inputs to
    float32, and multiplies them without tensor cores. If both operands were widened, their products stay the
    same, and are summed and returned in float32. If only one was widened from bfloat16, and the result is
    rounded to it, the other operand is rounded as well, as in fused kernels. A value that several matmuls
    read, transposed or not, is cast only once.
    """

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target in _TO_FLOAT32_FORM and fx.is_cuda_float32(node):
                _narrow(graph, node)
        _share_casts(graph)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        files = __file__, fx.__file__, weight_gradients.__file__
        return get_hash_for_files(files, "matmuls in 16 bits")


def _narrow(graph: Graph, matmul: Node) -> None:
    left, right = (_precision(operand) for operand in operands(matmul))
    dtype = left or right
    if dtype is None or (left and right and left is not right):
        return
    is_exact = left is right
    # A gradient may be too large or too small for float16.
    if not is_exact and not (dtype is torch.bfloat16 and _is_rounded(matmul, dtype)):
        return
    with graph.inserting_before(matmul):
        narrow = tuple(_cast(graph, operand, dtype, matmul) for operand in operands(matmul))
        if _is_rounded(matmul, dtype, scaled=False):
            product = insert_call(graph, matmul.target, narrow, instead_of=matmul)
            product = _cast(graph, product, torch.float32, matmul)
        else:
            product = insert_call(graph, _TO_FLOAT32_FORM[matmul.target], narrow, instead_of=matmul)
    matmul.replace_all_uses_with(product)


def _cast(graph: Graph, value: Node, dtype: torch.dtype, instead_of: Node) -> Node:
    return insert_call(graph, _CAST, (value, dtype), instead_of=instead_of)


def _share_casts(graph: Graph) -> None:
    """Cast a value to 16 bits only once, even if it is also cast in permuted form.

    The backward pass of a matmul multiplies by the transposed operand, which autocast casts again: torch
    would save both for it.
    """
    found: dict[tuple[Node, torch.dtype], list[Node]] = {}
    for cast in graph.find_nodes(op="call_function", target=_CAST):
        if cast.args[1] in fx.NARROW_TYPES and fx.is_cuda_float32(cast.args[0]):
            found.setdefault((fx.behind(cast.args[0], _PERMUTES), cast.args[1]), []).append(cast)
    for (value, dtype), casts in found.items():
        if len({cast.args[0] for cast in casts}) == 1:
            continue
        with graph.inserting_before(casts[0]):
            shared = _cast(graph, value, dtype, casts[0])
            # The backward pass expects these strides. Given others for the forward, it would be copied.
            strides = shared.meta["val"].stride()
            shared = fx.with_strides(graph, shared, strides, instead_of=casts[0])
        for cast in casts:
            with graph.inserting_before(cast):
                cast.replace_all_uses_with(_permuted_like(graph, shared, cast.args[0], cast))


def _permuted_like(graph: Graph, value: Node, like: Any, cast: Node) -> Node:
    """Return a value with its dimensions in the order of another one."""
    if like.target is not _aten.permute.default:
        return value
    inner = _permuted_like(graph, value, like.args[0], cast)
    return insert_call(graph, _aten.permute.default, (inner, like.args[1]), instead_of=cast)


def _precision(value: Any) -> torch.dtype | None:
    """Return the type from which a float32 value was widened; None if it has more than 16 bits."""
    while isinstance(value, Node):
        source = value.args[0] if value.args else None
        if value.target is _CAST:
            dtype = source.meta["val"].dtype if isinstance(source, Node) else None
            return dtype if dtype in fx.NARROW_TYPES else None
        if value.target not in _VIEWS and not (_is_multiple(value) and value.args[1] == 1):
            return None
        value = source
    return None


def _is_multiple(value: Node) -> bool:
    is_product = value.target in (_aten.mul.Tensor, _aten.mul.Scalar)
    return is_product and isinstance(value.args[1], int | float)


def _is_rounded(value: Node, dtype: torch.dtype, *, scaled: bool = True) -> bool:
    """Return whether a value, as it is or seen through views, is only ever rounded to 16 bits.

    With `scaled`, it may be multiplied by a number before.
    """

    def is_fine(user: Node) -> bool:
        if user.target is _CAST:
            return user.args[1] is dtype
        passes_on = user.target in _VIEWS or (_is_multiple(user) and bool(scaled or user.args[1] == 1))
        return passes_on and _is_rounded(user, dtype, scaled=scaled)

    return bool(value.users) and all(map(is_fine, value.users))
