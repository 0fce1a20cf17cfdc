"""A graph pass that casts all weights of a mixed-precision step together; imported only to compile."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx, strides
from .fx import insert_call

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
# Kernels of libraries, with which a cast cannot be fused.
_MATMULS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
}
_VIEWS = {_aten.permute.default, _aten.view.default, _aten.reshape.default, _aten.expand.default}


@torch.library.custom_op("flodl::cast_together", mutates_args=())
def cast_together(tensors: Sequence[Tensor], counts: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors in another dtype, cast by a few large kernels.

    Each result consists of as many tensors as its count says: of one, or of several whose rows follow each
    other.
    """
    results: list[Tensor] = _fake(tensors, counts, dtype)
    parts: list[Tensor] = []
    for result, group in zip(results, _split(tensors, counts)):
        parts += [result] if len(group) == 1 else torch.split(result, [*map(len, group)])
    torch._foreach_copy_(parts, [*tensors])
    return results


def _split(tensors: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    ends = list(itertools.accumulate(counts))
    return [tensors[end - count : end] for end, count in zip(ends, counts)]


@cast_together.register_fake
def _fake(tensors: Sequence[Tensor], counts: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    return [
        torch.empty_like(group[0], dtype=dtype)
        if len(group) == 1
        else group[0].new_empty((sum(map(len, group)), *group[0].shape[1:]), dtype=dtype)
        for group in _split(tensors, counts)
    ]


class CastWeightsTogether(CustomGraphPass):
    """Cast the inputs of a graph that only matmuls and convolutions read in one call.

    Under autocast, every weight and bias is cast in a kernel of its own, since it cannot be fused with a
    matmul: 134 kernels and 0.36 ms of the 4.8 ms that a step of BERT-base takes on an H200.
    """

    def __call__(self, graph: Graph) -> None:
        by_dtype: dict[torch.dtype, list[Node]] = {}
        for node in graph.find_nodes(op="call_function", target=_CAST):
            if _is_weight_cast(node):
                by_dtype.setdefault(node.args[1], []).append(node)
        for dtype, casts in by_dtype.items():
            if len(casts) > 1:
                _cast_together(graph, casts, dtype)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__, strides.__file__), "weights cast together")


def _is_weight_cast(node: Node) -> bool:
    weights = _weights(node)
    # What the graph overwrites must be read at its place.
    if not weights or not all(fx.is_cuda_float32(weight) and not fx.is_mutated(weight) for weight in weights):
        return False
    # The backward may read the result as well.
    found = strides.readers(node, is_view=lambda user: user.target in _VIEWS)
    readers = [user for user in found if user.op != "output"]
    return bool(readers) and all(user.target in _MATMULS for user in readers)


def _weights(cast: Node) -> list[Node]:
    """Return the inputs of the graph that a node casts: one, or several whose rows follow each other."""
    source = cast.args[0]
    assert isinstance(source, Node)
    if source.target is not _aten.cat.default:
        return [source] if source.op == "placeholder" else []
    parts = source.args[0]
    assert isinstance(parts, list | tuple)
    is_rows = source.args[1:] in ((), (0,)) and not source.kwargs
    is_cat = is_rows and all(isinstance(part, Node) and part.op == "placeholder" for part in parts)
    return [part for part in parts if isinstance(part, Node)] if is_cat else []


def _cast_together(graph: Graph, casts: Sequence[Node], dtype: torch.dtype) -> None:
    sources = list(dict.fromkeys(cast.args[0] for cast in casts))
    groups = list({cast.args[0]: _weights(cast) for cast in casts}.values())
    tensors = [weight for group in groups for weight in group]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        arguments = tensors, [len(group) for group in groups], dtype
        together = insert_call(graph, torch.ops.flodl.cast_together.default, arguments)
        results = {
            source: insert_call(graph, operator.getitem, (together, index))
            for index, source in enumerate(sources)
        }
    for cast in casts:
        cast.replace_all_uses_with(results[cast.args[0]])
        graph.erase_node(cast)
    graph.eliminate_dead_code()
