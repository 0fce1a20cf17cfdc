"""Attention that reads its inputs where they were computed; imported only when something is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import fx as rewriting
from . import strides
from .fx import ATTENTION, insert_call
from .strides import StridedView, merge_runs, view_of_source

_aten = torch.ops.aten
# In numbers; the kernels read several at once.
_ALIGNED = 8


class AttentionWithoutCopies(CustomGraphPass):
    """Let attention read its inputs where they were computed: queries, keys and values from one tensor.

    Torch's compiler writes each of them once more, although the kernels read them at any distance.
    """

    def __call__(self, graph: Graph) -> None:
        shown: dict[Node, StridedView] = {}
        for node in graph.nodes:
            for given in node.args[: _num_inputs(node)]:
                if given not in shown and (found := _readable(given)) is not None:
                    shown[given] = found
        for source in dict.fromkeys(found.source for found in shown.values()):
            parts = {given: found for given, found in shown.items() if found.source is source}
            if _is_worth_it([*parts.values()]):
                _read_in_place(graph, parts)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__, strides.__file__), "attention in place")


def _num_inputs(node: Node) -> int:
    return ATTENTION.get(node.target, 0)


def _readable(given: Any) -> StridedView | None:
    """Say what an input of attention shows of a value, where the kernels can read it there."""
    if (
        not isinstance(given, Node)
        or not rewriting.is_cuda(given)
        or (found := view_of_source(given)) is None
    ):
        return None
    if found.source is given or not rewriting.owns_memory(found.source):
        return None
    # A copy that others read as well stays.
    if not all(user.target in ATTENTION for user in given.users):
        return None
    # What another kernel than a fused one has written is read in place as it is.
    if not found.copied and not rewriting.is_pointwise(found.source):
        return None
    sides = [merge_runs(side) for side in found.sides]
    *steps, last = (side[0][1] if side else 0 for side in sides)
    is_aligned = all(step % _ALIGNED == 0 for step in (*steps, found.offset))
    return found if is_aligned and last == 1 and all(len(side) < 2 for side in sides) else None


def _is_worth_it(parts: Sequence[StridedView]) -> bool:
    """Say whether parts are all of a value, so that nothing is written for nobody, and a copy is saved."""
    places = {(part.sides, part.offset) for part in parts}
    shown = sum(math.prod(size for side in sides for size, _ in side) for sides, _ in places)
    is_all = bool(shown == parts[0].source.meta["val"].numel())
    return is_all and (len(parts) > 1 or parts[0].copied)


def _read_in_place(graph: Graph, parts: dict[Node, StridedView]) -> None:
    """Let all that reads parts of a value read them there, or nothing: a copy for one serves all."""
    views = {given: _view(graph, given, found) for given, found in parts.items()}
    users = dict.fromkeys(user for given in parts for user in given.users)
    arguments = {user: _replaced(user, views) for user in users}
    if all(_lies_as_before(user, given) for user, given in arguments.items()):
        for user, given in arguments.items():
            user.args = given


def _view(graph: Graph, given: Node, found: StridedView) -> Node:
    shape, sides = list(given.meta["val"].shape), [merge_runs(side) for side in found.sides]
    # A side of one number is never walked along.
    steps = [side[0][1] if side else found.source.meta["val"].numel() for side in sides]
    with graph.inserting_before(found.source.next):
        placed = found.source, shape, steps, found.offset
        return insert_call(graph, _aten.as_strided.default, placed, instead_of=given)


def _replaced(attention: Node, views: Mapping[Node, Node]) -> tuple[Any, ...]:
    inputs = _num_inputs(attention)
    first: Sequence[Any] = attention.args[:inputs]
    first = [views.get(given, given) for given in first]
    return *first, *attention.args[inputs:]


def _lies_as_before(attention: Node, arguments: tuple[Any, ...]) -> bool:
    """Say whether the results lie as before; some kernels let them lie as the queries do."""
    given = arguments, attention.kwargs
    values, named = torch.fx.node.map_arg(given, lambda node: node.meta["val"])
    made = attention.target(*values, **named)  # type: ignore[operator]
    return all(_steps(new) == _steps(old) for new, old in zip(made, attention.meta["val"]))


def _steps(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) else None
