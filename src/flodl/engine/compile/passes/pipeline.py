"""What flodl changes in the program that torch's compiler fuses: where a bias is added, and how loops learn.

Imported only when something is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx as rewriting
from .attention import AttentionWithoutCopies
from .fx import (
    concat_columns,
    concat_rows,
    insert_call,
    is_row_sum,
    is_transposed,
    operands,
    sort_topologically,
)
from .gru import DecomposeGruCells
from .matmul import BatchAndSplitMatmuls
from .mutated_buffers import CloneMutatedBuffers
from .row_order import MatmulInStorageOrder

_aten = torch.ops.aten
# Above this size of a result, a sum of its own moves more memory than the slower kernel costs.
_LARGE_BYTES = 64 << 20


class DecomposeAddmm(CustomGraphPass):
    """Write `addmm(bias, x, w)` as a product and a sum, for float32 on CUDA.

    The product with a bias inside picks a slow kernel for many shapes (34 µs against 10 µs for one
    layer of the mlp on an H200), and the sum is free once it is fused into the kernel that follows.

    It is done twice. Before forward and backward are told apart: the backward then keeps the product,
    which lies in memory anyway, and adds the bias again, so the sum is never written; torch joins the two
    again where a sum cannot be fused. After that: what torch joined, up to `most_bytes` of result.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self._most_bytes = most_bytes

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=_aten.addmm.default)):
            if (
                not node.kwargs
                and rewriting.is_cuda_float32(node)
                and node.meta["val"].nbytes <= self._most_bytes
            ):
                _unfold(graph, node)

    def uuid(self) -> Any:
        files = __file__, rewriting.__file__
        return get_hash_for_files(files, f"bias outside up to {self._most_bytes}")


class MergeMatmulSums(CustomGraphPass):
    """Write a sum of products as one product over a longer inner side.

    The weight that a loop uses in every turn gets its gradient as such a sum: ten small products and
    nine sums become one product. Two others stay apart, as in `self.input(x) + self.hidden(h)`: what is
    given, as weights are, would be copied to lie together.
    """

    def __call__(self, graph: Graph) -> None:
        for root, terms in _nests(graph):
            products = [term for term in terms if _is_lone_product(term) and _is_alike(term, root)]
            if len(products) > 2 or (len(products) == 2 and all(map(_is_of_weight, products))):
                _join(graph, root, terms, products)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__), "joined products")


class MergeRowSums(CustomGraphPass):
    """Write a sum of sums over rows as one sum over all rows.

    The bias that a loop uses in every turn gets its gradient as such a sum, and mostly the rows lie together
    for the gradient of the weight already.
    """

    def __call__(self, graph: Graph) -> None:
        if rewriting.draws_random_numbers(graph):
            return
        for root, terms in _nests(graph):
            found = {term: rows for term in terms if (rows := _summed_rows(term, root)) is not None}
            if len(found) > 2:
                _sum_once(graph, root, terms, found)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__), "joined sums")


class PassSequence(CustomGraphPass):
    """Several changes, one after the other."""

    def __init__(self, *changes: CustomGraphPass) -> None:
        self._changes = changes

    def __call__(self, graph: Graph) -> None:
        for change in self._changes:
            change(graph)

    def uuid(self) -> Any:
        return tuple(change.uuid() for change in self._changes)


def inductor_options(*, tune: str | None = None) -> dict[str, Any]:
    """Give the compiler options that put these changes in.

    Random numbers are drawn as eager draws them, so that the two can be compared. With tune="gemm"
    every matrix product is tried out with many kernels, which takes minutes.
    """
    tuning = {"max_autotune_gemm": True} if tune == "gemm" else {}
    products = [] if tune == "gemm" else [BatchAndSplitMatmuls()]
    return {
        **tuning,
        "fallback_random": True,
        "joint_custom_pre_pass": PassSequence(
            DecomposeGruCells(), DecomposeAddmm(), MatmulInStorageOrder(), AttentionWithoutCopies()
        ),
        # After torch's own changes, which would leave the copies of buffers out.
        "joint_custom_post_pass": CloneMutatedBuffers(),
        "post_grad_custom_pre_pass": PassSequence(MergeMatmulSums(), MergeRowSums()),
        "post_grad_custom_post_pass": PassSequence(DecomposeAddmm(_LARGE_BYTES), *products),
    }


def _unfold(graph: Graph, node: Node) -> None:
    bias, left, right = node.args
    with graph.inserting_before(node):
        product = graph.call_function(_aten.mm.default, (left, right))
        total = graph.call_function(_aten.add.Tensor, (product, bias))
    for new in (product, total):
        new.meta.update(node.meta)
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _is_lone_product(node: Any) -> bool:
    return isinstance(node, Node) and node.target is _aten.mm.default and _is_read_once(node)


def _is_of_weight(product: Node) -> bool:
    """Say whether a product is the gradient of a weight, whose left side is transposed."""
    return is_transposed(operands(product)[0])


def _is_read_once(node: Node) -> bool:
    """Say whether a value goes into one place only; a sum may add it to itself."""
    return len(node.users) == 1 and next(iter(node.users)).args.count(node) == 1


def _is_alike(node: Node, root: Node) -> bool:
    """Say whether a term has the shape of the whole sum, so that it is not spread out by it."""
    return rewriting.is_cuda_float32(node) and node.meta["val"].shape == root.meta["val"].shape


def _nests(graph: Graph) -> Iterator[tuple[Node, list[Any]]]:
    """Give the sums that are no part of another one, each with all that it adds up; the last comes first."""
    inner: set[Node] = set()
    for root in reversed(list(graph.find_nodes(op="call_function", target=_aten.add.Tensor))):
        if root not in inner and not root.kwargs and rewriting.is_cuda_float32(root):
            yield root, list(_terms(root, inner))


def _terms(root: Node, inner: set[Node]) -> Iterator[Any]:
    """Give what a nest of sums adds up; sums that are read more than once count as one term."""
    waiting = [*reversed(root.args)]
    while waiting:
        argument = waiting.pop()
        if (
            isinstance(argument, Node)
            and argument.target is _aten.add.Tensor
            and not argument.kwargs
            and _is_read_once(argument)
            # Others add up in another way: two truths are one.
            and rewriting.is_cuda_float32(argument)
        ):
            inner.add(argument)
            waiting += reversed(argument.args)
        else:
            yield argument


def _join(graph: Graph, root: Node, terms: list[Any], products: list[Node]) -> None:
    others = [term for term in terms if term not in products]
    lefts, rights = zip(*map(operands, products))
    with graph.inserting_before(root):
        total = graph.call_function(
            _aten.mm.default, (concat_columns(graph, lefts), concat_rows(graph, rights))
        )
        total.meta.update(root.meta)
        for other in others:
            total = graph.call_function(_aten.add.Tensor, (total, other))
            total.meta.update(root.meta)
    root.replace_all_uses_with(total)
    graph.eliminate_dead_code()


def _summed_rows(term: Any, root: Node) -> Node | None:
    """Give the matrix whose rows a term of a sum adds up; None where others read it or it is no such term."""
    if not isinstance(term, Node) or not _is_alike(term, root) or not _is_read_once(term):
        return None
    # Torch traces a view, and its compiler makes a reshape of it.
    if term.target in (_aten.view.default, _aten.reshape.default) and _is_read_once(term.all_input_nodes[0]):
        term = term.all_input_nodes[0]
    rows = term.all_input_nodes[0] if is_row_sum(term) else None
    is_matrix = rows is not None and rows.meta["val"].dim() == 2 and root.meta["val"].dim() == 1
    return rows if is_matrix else None


def _sum_once(graph: Graph, root: Node, terms: list[Any], found: dict[Node, Node]) -> None:
    parts = list(found.values())
    with graph.inserting_before(root):
        whole = next((node for node in parts[0].users if _holds(node, parts)), None) or concat_rows(
            graph, parts
        )
        total = insert_call(graph, _aten.sum.dim_IntList, (whole, [0]))
        for other in (term for term in terms if term not in found):
            total = insert_call(graph, _aten.add.Tensor, (total, other))
    root.replace_all_uses_with(total)
    sort_topologically(graph)
    graph.eliminate_dead_code()


def _holds(node: Node, parts: list[Node]) -> bool:
    """Say whether these matrices, in whatever order, are laid below each other by a node."""
    is_stack = node.target is _aten.cat.default and node.args[1:] == (0,)
    return is_stack and sorted(node.args[0], key=id) == sorted(parts, key=id)  # type: ignore[arg-type]
