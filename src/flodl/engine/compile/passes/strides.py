"""Where the numbers of a view lie in the tensor that it shows; copies are looked through.

Imported only when something is compiled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.fx import Node

_aten = torch.ops.aten
# So many numbers, so far apart.
Run = tuple[int, int]
Dim = tuple[Run, ...]


@dataclass(frozen=True)
class StridedView:
    """What a value shows of another one: for each side its runs, the outermost first."""

    source: Node
    sides: tuple[Dim, ...]
    offset: int = 0
    copied: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every number of the source is shown."""
        shown = math.prod(size for side in self.sides for size, _ in side)
        return bool(shown == self.source.meta["val"].numel())


def view_of_source(node: Node) -> StridedView | None:
    """Say what a value shows of the one that was computed last; None where that is not known."""
    steps: list[tuple[_Step, Node]] = []
    while (step := _step(node)) is not None:
        steps.append((step, node))
        node = _shown(node)
    found = _itself(node)
    for step, view in reversed(steps):
        if found is None:
            return None
        found = step(found, view)
    return found


def is_view(node: Node) -> bool:
    """Say whether a value only shows another one, or is a copy of it."""
    return node.target in _PARTS or _step(node) is not None


def merge_runs(side: Dim) -> Dim:
    """Join runs that follow each other without a gap.

    >>> merge_runs(((32, 512), (8, 64), (64, 1))), merge_runs(((8, 64), (32, 512)))
    (((16384, 1),), ((8, 64), (32, 512)))
    """
    found: list[Run] = []
    for size, stride in side:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return tuple(found)


def split_runs(runs: Sequence[Run], shape: Sequence[int]) -> tuple[Dim, ...] | None:
    """Share runs out among sides of these lengths; None where one would be broken in the middle.

    >>> runs = [(4, 6), (6, 1)]
    >>> split_runs(runs, [2, 2, 6]), split_runs(runs, [8, 3]), split_runs(runs, [3, 8])
    ((((2, 12),), ((2, 6),), ((6, 1),)), (((4, 6), (2, 3)), ((3, 1),)), None)
    """
    left = [run for run in reversed(runs) if run[0] != 1]
    if 0 in (size for size, _ in left):
        return None
    sides: list[Dim] = []
    for wanted in shape:
        side: list[Run] = []
        while wanted > 1:
            if not left:
                return None
            size, stride = left.pop()
            taken = math.gcd(size, wanted)
            if taken not in (size, wanted):
                return None
            rest = size // taken
            side.append((taken, stride * rest))
            if rest > 1:
                left.append((rest, stride))
            wanted //= taken
        sides.append(tuple(side))
    return None if left else tuple(sides)


_Step = Callable[[StridedView, Node], StridedView | None]


def _itself(node: Node) -> StridedView | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(length, int) for length in value.shape):
        return None
    runs = list(zip(value.shape, value.stride()))
    as_it_lies = merge_runs(tuple(sorted(runs, key=operator.itemgetter(1), reverse=True)))
    # Without gaps, and no number twice.
    if value.numel() == 0 or value.storage_offset() or as_it_lies not in ((), ((value.numel(), 1),)):
        return None
    return StridedView(node, tuple((run,) for run in runs))


def _shown(view: Node) -> Node:
    """Give the value that a view shows; of a part of several, the value that was parted."""
    shown: Any = view.args[0]
    return cast(Node, shown.args[0] if view.target is operator.getitem else shown)


def _step(node: Node) -> _Step | None:
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _PARTS.get(node.args[0].target)
    return _STEPS.get(node.target)


def _copied(of: StridedView, node: Node) -> StridedView:
    return replace(of, copied=True)


def _reshaped(of: StridedView, node: Node) -> StridedView | None:
    shape = node.meta["val"].shape
    if not all(isinstance(length, int) for length in shape):
        return None
    sides = split_runs([run for side in of.sides for run in side], shape)
    return None if sides is None else replace(of, sides=sides)


def _permuted(of: StridedView, node: Node) -> StridedView:
    order: Sequence[int] = node.args[1]  # type: ignore[assignment]
    return replace(of, sides=tuple(of.sides[place] for place in order))


def _exchanged(of: StridedView, node: Node) -> StridedView:
    sides = list(of.sides)
    if len(sides) < 2:
        return of
    first, second = node.args[1:] if len(node.args) > 1 else (0, -1)
    sides[first], sides[second] = sides[second], sides[first]  # type: ignore[index]
    return replace(of, sides=tuple(sides))


def _selected(of: StridedView, dim: Any, index: Any) -> StridedView | None:
    if not isinstance(index, int):
        return None
    side = of.sides[dim]
    index %= math.prod(size for size, _ in side)
    offset = of.offset
    for size, stride in reversed(side):
        offset += index % size * stride
        index //= size
    dim %= len(of.sides)
    return replace(of, sides=of.sides[:dim] + of.sides[dim + 1 :], offset=offset)


def _sliced(of: StridedView, dim: Any, start: int, length: int) -> StridedView | None:
    dim %= len(of.sides)
    (size, stride), *inner = merge_runs(of.sides[dim]) or ((1, 1),)
    below = math.prod(each for each, _ in inner)
    if start % below or length % below:
        return None
    side = (length // below, stride), *inner
    if (start + length) // below > size:
        return None
    sides = (*of.sides[:dim], side, *of.sides[dim + 1 :])
    return replace(of, sides=sides, offset=of.offset + start // below * stride)


def _slice(of: StridedView, node: Node) -> StridedView | None:
    given: list[Any] = [*node.args[1:]]
    dim, start, _, step = given + [0, 0, None, 1][len(given) :]
    start, length = start or 0, node.meta["val"].shape[dim]
    if step != 1 or not isinstance(start, int) or not isinstance(length, int):
        return None
    whole = math.prod(size for size, _ in of.sides[dim])
    return _sliced(of, dim, max(0, start + whole if start < 0 else start), length)


def _part(of: StridedView, node: Node) -> StridedView | None:
    """Show one of the parts that a tensor was split into."""
    parted, place = cast(tuple[Node, int], node.args)
    dim: Any = parted.args[2] if len(parted.args) > 2 else 0
    lengths = [part.shape[dim] for part in parted.meta["val"]][: place + 1]
    if not all(isinstance(length, int) for length in lengths):
        return None
    return _sliced(of, dim, sum(lengths[:-1]), lengths[-1])


def _one(of: StridedView, node: Node) -> StridedView | None:
    """Show one of the layers that a tensor was taken apart into."""
    parted, place = cast(tuple[Node, int], node.args)
    return _selected(of, parted.args[1] if len(parted.args) > 1 else 0, place)


_STEPS: dict[Any, _Step] = {
    _aten.clone.default: _copied,
    _aten.alias.default: lambda of, node: of,
    _aten.permute.default: _permuted,
    _aten.transpose.int: _exchanged,
    _aten.t.default: _exchanged,
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
_PARTS: dict[Any, _Step] = {
    _aten.split.Tensor: _part,
    _aten.split_with_sizes.default: _part,
    _aten.unbind.int: _one,
}
