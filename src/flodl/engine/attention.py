"""Attention that reads its inputs where they were computed; imported only when something is compiled."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import rewriting, strides
from .rewriting import ATTENTION, call
from .strides import Spread, joined, spread

_aten = torch.ops.aten
# In numbers; the kernels read several at once.
_ALIGNED = 8


class AttentionInPlace(CustomGraphPass):
    """Let attention read its inputs where they were computed: queries, keys and values from one tensor.

    Torch's compiler writes each of them once more, although the kernels read them at any distance.
    """

    def __call__(self, graph: Graph) -> None:
        shown: dict[Node, Spread] = {}
        for node in graph.nodes:
            for given in node.args[: _num_inputs(node)]:
                if given not in shown and (found := _readable(given)) is not None:
                    shown[given] = found
        for given, found in shown.items():
            parts = [part for part in shown.values() if part.source is found.source]
            if _are_all_of_it(parts) and (found.copied or len(parts) > 1):
                _read_in_place(graph, given, found)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, rewriting.__file__, strides.__file__), "attention in place")


def _num_inputs(node: Node) -> int:
    return ATTENTION.get(node.target, 0)


def _readable(given: Any) -> Spread | None:
    """Say what an input of attention shows of a value, where the kernels can read it there."""
    if not isinstance(given, Node) or not rewriting.is_on_cuda(given) or (found := spread(given)) is None:
        return None
    if found.source is given or not _owns_its_memory(found.source):
        return None
    # What another kernel than a fused one has written is read in place as it is.
    if not found.copied and not rewriting.is_pointwise(found.source):
        return None
    sides = [joined(side) for side in found.sides]
    *steps, last = (side[0][1] if side else 0 for side in sides)
    is_aligned = all(step % _ALIGNED == 0 for step in (*steps, found.offset))
    return found if is_aligned and last == 1 and all(len(side) < 2 for side in sides) else None


def _owns_its_memory(node: Node) -> bool:
    """Say whether a value is no view of another one, and not given to the program."""
    parted = node.args[0] if node.target is operator.getitem else node
    target = parted.target if isinstance(parted, Node) else None
    return isinstance(target, torch._ops.OpOverload) and all(
        each.alias_info is None for each in target._schema.returns
    )


def _are_all_of_it(parts: Sequence[Spread]) -> bool:
    """Say whether parts of a value are all of it, so that nothing is written for nobody."""
    places = {(part.sides, part.offset) for part in parts}
    shown = sum(math.prod(size for side in sides for size, _ in side) for sides, _ in places)
    return bool(shown == parts[0].source.meta["val"].numel())


def _read_in_place(graph: Graph, given: Node, found: Spread) -> None:
    shape, sides = list(given.meta["val"].shape), [joined(side) for side in found.sides]
    # A side of one number is never walked along.
    steps = [side[0][1] if side else found.source.meta["val"].numel() for side in sides]
    with graph.inserting_before(found.source.next):
        view = call(graph, _aten.as_strided.default, (found.source, shape, steps, found.offset))
    for user in list(given.users):
        inputs = _num_inputs(user)
        arguments = tuple(view if each is given else each for each in user.args[:inputs])
        if arguments != user.args[:inputs] and _lies_as_before(user, (*arguments, *user.args[inputs:])):
            user.args = *arguments, *user.args[inputs:]


def _lies_as_before(attention: Node, arguments: tuple[Any, ...]) -> bool:
    """Say whether the results lie as before; some kernels let them lie as the queries do."""
    values = torch.fx.node.map_arg(arguments, lambda node: node.meta["val"])
    made = attention.target(*values, **attention.kwargs)  # type: ignore[operator]
    return all(_steps(new) == _steps(old) for new, old in zip(made, attention.meta["val"]))


def _steps(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) else None
