"""A graph pass that lets attention read strided inputs without copies; imported only to compile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx, strides
from .fx import ATTENTION, insert_call
from .strides import StridedView, merge_runs, view_of_source

_aten = torch.ops.aten
# In elements; the kernels load vectors.
_ALIGNED = 8


class AttentionWithoutCopies(CustomGraphPass):
    """Let attention read queries, keys and values as strided views of the tensor that contains them.

    Torch's compiler copies each of them, although the kernels accept any strides.
    """

    def __call__(self, graph: Graph) -> None:
        views: dict[Node, StridedView] = {}
        for node in graph.nodes:
            for argument in node.args[: _num_inputs(node)]:
                if argument not in views and (view := _readable(argument)) is not None:
                    views[argument] = view
        for source in dict.fromkeys(view.source for view in views.values()):
            parts = {argument: view for argument, view in views.items() if view.source is source}
            if _saves_a_copy([*parts.values()]):
                _read_without_copies(graph, parts)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__, strides.__file__), "attention without copies")


def _num_inputs(node: Node) -> int:
    return ATTENTION.get(node.target, 0)


def _readable(argument: Any) -> StridedView | None:
    """Return an attention input as a view of its source, if the kernels can read that view."""
    if (
        not isinstance(argument, Node)
        or not fx.is_cuda(argument)
        or (found := view_of_source(argument)) is None
    ):
        return None
    if found.source is argument or not fx.owns_memory(found.source):
        return None
    # A copy that has other readers is kept.
    if not all(user.target in ATTENTION for user in argument.users):
        return None
    dims = [merge_runs(dim) for dim in found.dims]
    *outer, last = (dim[0][1] if dim else 0 for dim in dims)
    is_aligned = all(stride % _ALIGNED == 0 for stride in (*outer, found.offset))
    return found if is_aligned and last == 1 and all(len(dim) < 2 for dim in dims) else None


def _saves_a_copy(parts: Sequence[StridedView]) -> bool:
    """Return whether a copy is saved, and the parts cover the whole source, so that all of it is used."""
    regions = {(part.dims, part.offset) for part in parts}
    covered = sum(math.prod(size for dim in dims for size, _ in dim) for dims, _ in regions)
    is_whole = bool(covered == parts[0].source.meta["val"].numel())
    # The output of a kernel that is not fused is read without a copy anyway.
    is_fused = len(parts) > 1 and fx.is_pointwise(parts[0].source)
    return is_whole and (is_fused or any(part.copied for part in parts))


def _read_without_copies(graph: Graph, parts: dict[Node, StridedView]) -> None:
    """Rewrite all readers of the parts of a source, or none: a copy for one would serve all."""
    views = {argument: _view(graph, argument, found) for argument, found in parts.items()}
    users = dict.fromkeys(user for argument in parts for user in argument.users)
    arguments = {user: _replaced(user, views) for user in users}
    if all(_keeps_strides(user, new) for user, new in arguments.items()):
        for user, new in arguments.items():
            user.args = new


def _view(graph: Graph, argument: Node, found: StridedView) -> Node:
    shape, dims = list(argument.meta["val"].shape), [merge_runs(dim) for dim in found.dims]
    # The stride of a dimension of size one is never used.
    strides = [dim[0][1] if dim else found.source.meta["val"].numel() for dim in dims]
    with graph.inserting_before(found.source.next):
        view = found.source, shape, strides, found.offset
        return insert_call(graph, _aten.as_strided.default, view, instead_of=argument)


def _replaced(attention: Node, views: Mapping[Node, Node]) -> tuple[Any, ...]:
    inputs = _num_inputs(attention)
    first: Sequence[Any] = attention.args[:inputs]
    first = [views.get(argument, argument) for argument in first]
    return *first, *attention.args[inputs:]


def _keeps_strides(attention: Node, arguments: tuple[Any, ...]) -> bool:
    """Return whether the results keep their strides; some kernels copy the strides of the queries."""
    values, named = torch.fx.node.map_arg((arguments, attention.kwargs), lambda node: node.meta["val"])
    results = attention.target(*values, **named)  # type: ignore[operator]
    return all(_strides(new) == _strides(old) for new, old in zip(results, attention.meta["val"]))


def _strides(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) else None
