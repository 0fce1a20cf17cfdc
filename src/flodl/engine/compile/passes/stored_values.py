"""A graph pass: costly values that are read many times are stored; imported only to compile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.lowering import register_lowering
from torch.fx import Graph, Node

from . import fx
from .fx import insert_call

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
# Dozens of instructions each.
_COSTLY = (_aten.sin.default, _aten.cos.default, _aten.log.default)
_LOOKUPS = {_aten.embedding.default, _aten.index.Tensor}
_RESHAPES = {_aten.view.default, _aten.reshape.default, _aten.unsqueeze.default, _aten.squeeze.dim}
# Torch's compiler gives a copy the strides of its source, and computes it in its readers.
_VIEWS = _RESHAPES | {_aten.permute.default, _aten.clone.default}
# A reader has at least this many times the elements.
_MIN_REPEATS = 8
# The readers of a value have this many elements together; a small value costs a kernel to store.
_MIN_ELEMENTS, _MIN_STORED = 1 << 21, 1 << 10


@torch.library.custom_op("flodl::stored", mutates_args=())
def stored(value: Tensor) -> Tensor:
    """Return a value that its readers load instead of computing it again."""
    return value.clone()


@stored.register_fake
def _fake(value: Tensor) -> Tensor:
    return torch.empty_like(value)


@register_lowering(torch.ops.flodl.stored.default, type_promotion_kind=None)  # type: ignore[untyped-decorator, no-untyped-call, unused-ignore]
def _lower(value: Any) -> Any:
    value.realize()
    return value


class StoreSharedValues(CustomGraphPass):
    """Store values that are computed from positions and read by all heads and layers.

    The compiler computes sines, cosines and logarithms again for each element of each reader. For each
    layer of a Llama, these are the queries and keys and their gradients; in DeBERTa, the scores of all heads.
    A bias that was looked up for each position and then permuted, as in T5, is stored in the order in which
    the scores are.
    """

    def __call__(self, graph: Graph) -> None:
        for node in list(dict.fromkeys(_shared_values(graph))):
            if _num_read(node) >= _MIN_ELEMENTS:
                with graph.inserting_after(node):
                    new = insert_call(graph, torch.ops.flodl.stored.default, (node,), instead_of=node)
                _read_instead(node, new)
        for node in list(_permuted_lookups(graph)):
            if _num_read(node) >= _MIN_ELEMENTS:
                with graph.inserting_after(node):
                    new = fx.with_strides(graph, node, instead_of=node)
                _read_instead(node, new)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "shared values are stored")


def _shared_values(graph: Graph) -> Iterator[Node]:
    """Yield values that are computed from a costly function, and that larger values read."""
    costly = (node for target in _COSTLY for node in graph.find_nodes(op="call_function", target=target))
    for value in _elementwise(node for node in costly if fx.is_cuda(node)):
        if any(_is_larger(user, value) for user in value.users):
            base = fx.behind(value, _VIEWS)
            if (_size(base) or 0) >= _MIN_STORED:
                yield base


def _elementwise(values: Iterable[Node]) -> Iterator[Node]:
    """Yield values, and what is computed from them elementwise."""
    waiting = [*values]
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        yield value
        for user in value.users:
            is_elementwise = fx.is_pointwise(user) or user.target is _CAST or user.target in _VIEWS
            if is_elementwise and _size(user) == _size(value) and user not in seen:
                seen.add(user)
                waiting.append(user)


def _permuted_lookups(graph: Graph) -> Iterator[Node]:
    """Yield permuted results of lookups."""
    for node in graph.find_nodes(op="call_function", target=_aten.permute.default):
        is_lookup = fx.behind(node.all_input_nodes[0], _RESHAPES).target in _LOOKUPS and fx.is_cuda(node)
        if is_lookup and (_size(node) or 0) >= _MIN_STORED and not node.meta["val"].is_contiguous():
            yield node


def _read_instead(old: Node, new: Node) -> None:
    """Let the readers of a value read one that was computed from it."""
    for user in [user for user in old.users if user is not new]:
        user.replace_input_with(old, new)


def _num_read(value: Node) -> int:
    """Return the number of elements of the larger values that are computed from a value elementwise."""
    larger = {user for each in _elementwise([value]) for user in each.users if _is_larger(user, each)}
    return sum(_size(user) or 0 for user in larger)


def _is_larger(user: Node, value: Node) -> bool:
    ours, theirs = _size(value), _size(user)
    return ours is not None and theirs is not None and theirs >= _MIN_REPEATS * ours


def _size(node: Node) -> int | None:
    """Return the number of elements of a tensor; None if it is not known."""
    value = fx.fake_value(node)
    is_known = isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)
    return value.numel() if is_known else None
