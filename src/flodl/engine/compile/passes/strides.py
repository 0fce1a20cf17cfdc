"""Which elements of its source tensor a view contains, as sizes and strides; copies are looked through.

Imported only to compile.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.fx import Node

_aten = torch.ops.aten
# A size and a stride.
Run = tuple[int, int]
Dim = tuple[Run, ...]


@dataclass(frozen=True)
class StridedView:
    """A value as a view of its source: the runs of each dimension, outermost first."""

    source: Node
    dims: tuple[Dim, ...]
    offset: int = 0
    copied: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the view contains every element of the source."""
        covered = math.prod(size for dim in self.dims for size, _ in dim)
        return bool(covered == self.source.meta["val"].numel())


def view_of_source(node: Node) -> StridedView | None:
    """Return a value as a view of the tensor that was computed last; None if that is not known."""
    rules: list[tuple[_ViewRule, Node]] = []
    while (rule := _view_rule(node)) is not None:
        rules.append((rule, node))
        node = _source(node)
    view = _whole_tensor(node)
    for rule, each in reversed(rules):
        if view is None:
            return None
        view = rule(view, each)
    return view


def is_view(node: Node) -> bool:
    """Return whether a node is a view or a copy of another one."""
    return node.target in _SPLITS or _view_rule(node) is not None


def readers(node: Node, *, is_view: Callable[[Node], bool] = is_view) -> Iterator[Node]:
    """Yield the readers of a value, and those that read a view of it, but not the views themselves."""
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if is_view(user):
                waiting.append(user)
            else:
                yield user


def merge_runs(dim: Dim) -> Dim:
    """Merge adjacent runs that are contiguous.

    >>> merge_runs(((32, 512), (8, 64), (64, 1))), merge_runs(((8, 64), (32, 512)))
    (((16384, 1),), ((8, 64), (32, 512)))
    """
    merged: list[Run] = []
    for size, stride in dim:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = merged[-1][0] * size, stride
        else:
            merged.append((size, stride))
    return tuple(merged)


def split_runs(runs: Sequence[Run], shape: Sequence[int]) -> tuple[Dim, ...] | None:
    """Distribute runs over the dimensions of a shape; None if a run would have to be broken.

    >>> runs = [(4, 6), (6, 1)]
    >>> split_runs(runs, [2, 2, 6]), split_runs(runs, [8, 3]), split_runs(runs, [3, 8])
    ((((2, 12),), ((2, 6),), ((6, 1),)), (((4, 6), (2, 3)), ((3, 1),)), None)
    """
    left = [run for run in reversed(runs) if run[0] != 1]
    if 0 in (size for size, _ in left):
        return None
    dims: list[Dim] = []
    for wanted in shape:
        dim: list[Run] = []
        while wanted > 1:
            if not left:
                return None
            size, stride = left.pop()
            taken = math.gcd(size, wanted)
            if taken not in (size, wanted):
                return None
            rest = size // taken
            dim.append((taken, stride * rest))
            if rest > 1:
                left.append((rest, stride))
            wanted //= taken
        dims.append(tuple(dim))
    return None if left else tuple(dims)


_ViewRule = Callable[[StridedView, Node], StridedView | None]


def _whole_tensor(node: Node) -> StridedView | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(length, int) for length in value.shape):
        return None
    runs = list(zip(value.shape, value.stride()))
    in_memory = merge_runs(tuple(sorted(runs, key=operator.itemgetter(1), reverse=True)))
    # Without gaps or overlaps.
    if value.numel() == 0 or value.storage_offset() or in_memory not in ((), ((value.numel(), 1),)):
        return None
    return StridedView(node, tuple((run,) for run in runs))


def _source(view: Node) -> Node:
    """Return the value that a view is of; for one output of a split, the value that was split."""
    source: Any = view.args[0]
    return cast(Node, source.args[0] if view.target is operator.getitem else source)


def _view_rule(node: Node) -> _ViewRule | None:
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _SPLITS.get(node.args[0].target)
    return _VIEWS.get(node.target)


def _copied(of: StridedView, node: Node) -> StridedView:
    return replace(of, copied=True)


def _reshaped(of: StridedView, node: Node) -> StridedView | None:
    shape = node.meta["val"].shape
    if not all(isinstance(length, int) for length in shape):
        return None
    dims = split_runs([run for dim in of.dims for run in dim], shape)
    return None if dims is None else replace(of, dims=dims)


def _permuted(of: StridedView, node: Node) -> StridedView:
    order: Sequence[int] = node.args[1]  # type: ignore[assignment]
    return replace(of, dims=tuple(of.dims[index] for index in order))


def _transposed(of: StridedView, node: Node) -> StridedView:
    dims = list(of.dims)
    if len(dims) < 2:
        return of
    first, second = node.args[1:] if len(node.args) > 1 else (0, -1)
    dims[first], dims[second] = dims[second], dims[first]  # type: ignore[index]
    return replace(of, dims=tuple(dims))


def _selected(of: StridedView, dim: Any, index: Any) -> StridedView | None:
    if not isinstance(index, int):
        return None
    runs = of.dims[dim]
    index %= math.prod(size for size, _ in runs)
    offset = of.offset
    for size, stride in reversed(runs):
        offset += index % size * stride
        index //= size
    dim %= len(of.dims)
    return replace(of, dims=of.dims[:dim] + of.dims[dim + 1 :], offset=offset)


def _sliced(of: StridedView, dim: Any, start: int, length: int) -> StridedView | None:
    dim %= len(of.dims)
    (size, stride), *inner = merge_runs(of.dims[dim]) or ((1, 1),)
    below = math.prod(each for each, _ in inner)
    if start % below or length % below:
        return None
    runs = (length // below, stride), *inner
    if (start + length) // below > size:
        return None
    dims = (*of.dims[:dim], runs, *of.dims[dim + 1 :])
    return replace(of, dims=dims, offset=of.offset + start // below * stride)


def _slice(of: StridedView, node: Node) -> StridedView | None:
    arguments: list[Any] = [*node.args[1:]]
    dim, start, _, step = arguments + [0, 0, None, 1][len(arguments) :]
    start, length = start or 0, node.meta["val"].shape[dim]
    if step != 1 or not isinstance(start, int) or not isinstance(length, int):
        return None
    whole = math.prod(size for size, _ in of.dims[dim])
    return _sliced(of, dim, max(0, start + whole if start < 0 else start), length)


def _split_output(of: StridedView, node: Node) -> StridedView | None:
    """Return the view of one output of a split."""
    split, index = cast(tuple[Node, int], node.args)
    dim: Any = split.args[2] if len(split.args) > 2 else 0
    lengths = [part.shape[dim] for part in split.meta["val"]][: index + 1]
    if not all(isinstance(length, int) for length in lengths):
        return None
    return _sliced(of, dim, sum(lengths[:-1]), lengths[-1])


def _unbind_output(of: StridedView, node: Node) -> StridedView | None:
    """Return the view of one output of an unbind."""
    unbind, index = cast(tuple[Node, int], node.args)
    return _selected(of, unbind.args[1] if len(unbind.args) > 1 else 0, index)


_VIEWS: dict[Any, _ViewRule] = {
    _aten.clone.default: _copied,
    _aten.alias.default: lambda of, node: of,
    _aten.permute.default: _permuted,
    _aten.transpose.int: _transposed,
    _aten.t.default: _transposed,
    _aten.select.int: lambda of, node: _selected(of, *node.args[1:]),
    _aten.slice.Tensor: _slice,
    **dict.fromkeys(
        (
            _aten.view.default,
            _aten.reshape.default,
            _aten._unsafe_view.default,
            _aten.squeeze.default,
            _aten.squeeze.dim,
            _aten.squeeze.dims,
            _aten.unsqueeze.default,
        ),
        _reshaped,
    ),
}
_SPLITS: dict[Any, _ViewRule] = {
    _aten.split.Tensor: _split_output,
    _aten.split_with_sizes.default: _split_output,
    _aten.unbind.int: _unbind_output,
}
