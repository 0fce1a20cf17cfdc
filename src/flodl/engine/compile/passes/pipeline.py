"""The graph passes that flodl adds to torch's compiler, and three of them: addmm, sums of matmuls, row sums.

Imported only to compile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx
from .attention import AttentionWithoutCopies
from .causal_masks import RecognizeCausalMasks
from .column_sums import SumColumnsTogether
from .concatenations import ComputePartsSeparately
from .cross_entropy import FuseCrossEntropy
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
from .matmuls.batching import BatchAndSplitMatmuls
from .matmuls.narrow import MatmulsIn16Bits
from .matmuls.padding import AlignMatmuls
from .matmuls.patches import PatchesAsMatmuls
from .matmuls.projections import MergeProjections
from .matmuls.row_order import MatmulInStorageOrder
from .matmuls.weight_gradients import WeightGradientsInFloat32
from .mutated_buffers import CloneMutatedBuffers
from .repeated_positions import SumRepeatedPositions
from .stacks import StackSelectedSlices
from .stored_values import StoreSharedValues
from .weight_casts import CastWeightsTogether

_aten = torch.ops.aten
# For a larger result, a separate addition moves more memory than the slower kernel costs.
_LARGE_BYTES = 64 << 20


class DecomposeAddmm(CustomGraphPass):
    """Rewrite `addmm(bias, x, w)` as a matmul and an addition, for float32 on CUDA.

    With the bias, torch picks a slow kernel for many shapes (34 µs against 10 µs for one layer of the mlp on
    an H200), and the addition is free once it is fused into the kernel that follows.

    The pass runs twice. Before the graph is partitioned: the backward then saves the result of the matmul,
    which is in memory anyway, and adds the bias again, so the sum is never written. Torch merges the two
    again where the addition cannot be fused. After that: what torch merged, up to `max_bytes` of result.
    """

    def __init__(self, max_bytes: float = math.inf) -> None:
        self._max_bytes = max_bytes

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=_aten.addmm.default)):
            if not node.kwargs and fx.is_cuda_float32(node) and node.meta["val"].nbytes <= self._max_bytes:
                _decompose(graph, node)

    def uuid(self) -> Any:
        files = __file__, fx.__file__
        return get_hash_for_files(files, f"decomposed addmm up to {self._max_bytes}")


class MergeMatmulSums(CustomGraphPass):
    """Rewrite a sum of matmuls as one matmul with a longer K.

    The gradient of a weight that a loop uses in each iteration is such a sum: ten small matmuls and nine
    additions become one matmul. A sum of two is left alone unless it is a weight gradient, as in
    `self.input(x) + self.hidden(h)`: inputs such as weights would have to be copied next to each other.
    """

    def __call__(self, graph: Graph) -> None:
        for root, terms in _sums(graph):
            matmuls = [term for term in terms if _is_matmul_read_once(term) and _has_shape_of(term, root)]
            if len(matmuls) > 2 or (len(matmuls) == 2 and all(map(_is_weight_gradient, matmuls))):
                _merge(graph, root, terms, matmuls)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "merged sums of matmuls")


class MergeRowSums(CustomGraphPass):
    """Rewrite a sum of row sums as one sum over all rows.

    The gradient of a bias that a loop uses in each iteration is such a sum, and the rows are usually
    concatenated already for the gradient of the weight.
    """

    def __call__(self, graph: Graph) -> None:
        if fx.draws_random_numbers(graph):
            return
        for root, terms in _sums(graph):
            found = {term: rows for term in terms if (rows := _summed_rows(term, root)) is not None}
            if len(found) > 2:
                _merge_sums(graph, root, terms, found)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "merged row sums")


class PassSequence(CustomGraphPass):
    """Several passes, one after the other."""

    def __init__(self, *passes: CustomGraphPass) -> None:
        self._passes = passes

    def __call__(self, graph: Graph) -> None:
        for each in self._passes:
            each(graph)

    def uuid(self) -> Any:
        return tuple(each.uuid() for each in self._passes)


def inductor_options(*, tune: str | None = None) -> dict[str, Any]:
    """Return the compiler options that add these passes.

    Random numbers are drawn as in eager mode, so that the two can be compared. With tune="gemm" every matmul
    is autotuned over many kernels, which takes minutes.
    """
    tuning = {"max_autotune_gemm": True} if tune == "gemm" else {}
    matmul_passes = [] if tune == "gemm" else [BatchAndSplitMatmuls()]
    return {
        **tuning,
        "fallback_random": True,
        "pre_grad_custom_pass": PassSequence(FuseCrossEntropy(), PatchesAsMatmuls(), MergeProjections()),
        "joint_custom_pre_pass": PassSequence(
            DecomposeGruCells(),
            DecomposeAddmm(),
            MatmulsIn16Bits(),
            MatmulInStorageOrder(),
            RecognizeCausalMasks(),
            AttentionWithoutCopies(),
            SumRepeatedPositions(),
            AlignMatmuls(),
        ),
        # After torch's own passes, which would remove the copies of buffers.
        "joint_custom_post_pass": CloneMutatedBuffers(),
        "post_grad_custom_pre_pass": PassSequence(StackSelectedSlices(), MergeMatmulSums(), MergeRowSums()),
        "post_grad_custom_post_pass": PassSequence(
            WeightGradientsInFloat32(),
            DecomposeAddmm(_LARGE_BYTES),
            *matmul_passes,
            ComputePartsSeparately(),
            SumColumnsTogether(),
            StoreSharedValues(),
            CastWeightsTogether(),
        ),
    }


def _decompose(graph: Graph, node: Node) -> None:
    bias, left, right = node.args
    with graph.inserting_before(node):
        matmul = graph.call_function(_aten.mm.default, (left, right))
        total = graph.call_function(_aten.add.Tensor, (matmul, bias))
    for new in (matmul, total):
        new.meta.update(node.meta)
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _is_matmul_read_once(node: Any) -> bool:
    return isinstance(node, Node) and node.target is _aten.mm.default and _is_read_once(node)


def _is_weight_gradient(matmul: Node) -> bool:
    """Return whether a matmul is a weight gradient, with a transposed left operand."""
    return is_transposed(operands(matmul)[0])


def _is_read_once(node: Node) -> bool:
    """Return whether a value is read exactly once; an addition may read it twice."""
    return len(node.users) == 1 and next(iter(node.users)).args.count(node) == 1


def _has_shape_of(node: Node, root: Node) -> bool:
    """Return whether a term has the shape of the whole sum, so that it is not broadcast."""
    return fx.is_cuda_float32(node) and node.meta["val"].shape == root.meta["val"].shape


def _sums(graph: Graph) -> Iterator[tuple[Node, list[Any]]]:
    """Yield the outermost additions, last first, each with all its terms."""
    inner: set[Node] = set()
    for root in reversed(list(graph.find_nodes(op="call_function", target=_aten.add.Tensor))):
        if root not in inner and not root.kwargs and fx.is_cuda_float32(root):
            yield root, list(_terms(root, inner))


def _terms(root: Node, inner: set[Node]) -> Iterator[Any]:
    """Yield the terms of nested additions; an addition that is read more than once is one term."""
    waiting = [*reversed(root.args)]
    while waiting:
        argument = waiting.pop()
        if (
            isinstance(argument, Node)
            and argument.target is _aten.add.Tensor
            and not argument.kwargs
            and _is_read_once(argument)
            # Other dtypes add differently: True + True is True.
            and fx.is_cuda_float32(argument)
        ):
            inner.add(argument)
            waiting += reversed(argument.args)
        else:
            yield argument


def _merge(graph: Graph, root: Node, terms: list[Any], matmuls: list[Node]) -> None:
    others = [term for term in terms if term not in matmuls]
    lefts, rights = zip(*map(operands, matmuls))
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
    """Return the matrix whose rows a term sums; None if it is not such a term, or is read elsewhere."""
    if not isinstance(term, Node) or not _has_shape_of(term, root) or not _is_read_once(term):
        return None
    # Torch traces a view, which its compiler turns into a reshape.
    if term.target in (_aten.view.default, _aten.reshape.default) and _is_read_once(term.all_input_nodes[0]):
        term = term.all_input_nodes[0]
    rows = term.all_input_nodes[0] if is_row_sum(term) else None
    is_matrix = rows is not None and rows.meta["val"].dim() == 2 and root.meta["val"].dim() == 1
    return rows if is_matrix else None


def _merge_sums(graph: Graph, root: Node, terms: list[Any], found: dict[Node, Node]) -> None:
    parts = list(found.values())
    with graph.inserting_before(root):
        whole = next(
            (node for node in parts[0].users if _is_concatenation(node, parts)), None
        ) or concat_rows(graph, parts)
        total = insert_call(graph, _aten.sum.dim_IntList, (whole, [0]))
        for other in (term for term in terms if term not in found):
            total = insert_call(graph, _aten.add.Tensor, (total, other))
    root.replace_all_uses_with(total)
    sort_topologically(graph)
    graph.eliminate_dead_code()


def _is_concatenation(node: Node, parts: list[Node]) -> bool:
    """Return whether a node concatenates the rows of these matrices, in any order."""
    is_stack = node.target is _aten.cat.default and node.args[1:] == (0,)
    return is_stack and sorted(node.args[0], key=id) == sorted(parts, key=id)  # type: ignore[arg-type]
