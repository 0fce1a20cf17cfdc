"""Batches as the engine sees them: leaves, a structure, and a signature that a capture is made for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Signature = tuple[Hashable, ...]


def signature(batch: tuple[Any, ...]) -> Signature:
    """Give what must stay equal for a recorded program to fit: shapes, dtypes, devices, strides, structure.

    >>> signature((torch.zeros(2, 3),))[0][0]
    torch.Size([2, 3])
    """
    flat = _quick(batch)
    if flat is not None:
        return flat
    leaves, structure = pytree.tree_flatten(batch)
    return (*(_form(leaf) for leaf in leaves), structure, *shared_places(tensors_of(batch)))


def _quick(batch: tuple[Any, ...]) -> Signature | None:
    """The common case, a flat tuple of tensors, without the general machinery."""
    found = []
    for leaf in batch:
        if type(leaf) is not Tensor or leaf.is_nested:
            return None
        found.append(_leaf(leaf))
    return (*found, *shared_places(batch))


def shared_places(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Give, for leaves of which one is there twice, where each was seen first; nothing where all differ.

    >>> x = torch.zeros(2)
    >>> shared_places([x, torch.zeros(2), x]), shared_places([x])
    ((0, 1, 0), ())
    """
    first = {id(leaf): place for place, leaf in reversed(list(enumerate(leaves)))}
    return () if len(first) == len(leaves) else tuple(first[id(leaf)] for leaf in leaves)


def _form(value: Any) -> Hashable:
    """Give the form of what torch's pytree takes for a leaf, of which some are containers all the same."""
    parts = _parts(value)
    if parts is None:
        return _leaf(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    leaves, structure = pytree.tree_flatten(list(parts.values()))
    return (kind, tuple(parts), structure, *(_form(leaf) for leaf in leaves))


def _parts(value: Any) -> dict[Any, Any] | None:
    """Give what a container holds that torch's pytree does not know, by key or field; None for a leaf."""
    if isinstance(value, Mapping):
        return {key: value[key] for key in value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def leaves_of(batch: Any) -> Iterator[Any]:
    """Give everything in a batch that is no container, in order.

    >>> from collections import UserDict
    >>> list(leaves_of((UserDict(ids=[1, 2]), "word")))
    [1, 2, 'word']
    """
    for leaf in pytree.tree_leaves(batch):
        parts = _parts(leaf)
        if parts is None:
            yield leaf
        else:
            yield from leaves_of(list(parts.values()))


def mapped(change: Callable[[Any], Any], batch: Any) -> Any:
    """Give a batch of the same structure whose tensors and arrays were changed; containers are copied.

    >>> from collections import UserDict
    >>> mapped(lambda leaf: leaf + 1, (UserDict(ids=torch.tensor([1, 2])), "word"))
    ({'ids': tensor([2, 3])}, 'word')
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor | np.ndarray):
            return change(leaf)
        parts = _parts(leaf)
        if parts is None:
            return leaf
        return _with_parts(leaf, {key: mapped(change, part) for key, part in parts.items()})

    return pytree.tree_map(one, batch)


def _with_parts(container: Any, parts: dict[Any, Any]) -> Any:
    """Copy a container and put other parts into the copy; one that cannot be written to becomes a dict."""
    if not isinstance(container, Mapping):
        twin = copy.copy(container)
        for name, part in parts.items():
            # Past what a frozen dataclass forbids.
            object.__setattr__(twin, name, part)
        return twin
    try:
        written: Any = copy.copy(container)
        # A mapping of one's own keeps its items in a dict of its own, which a copy still shares.
        for name, kept in list(getattr(written, "__dict__", {}).items()):
            if isinstance(kept, dict):
                written.__dict__[name] = copy.copy(kept)
        for key, part in parts.items():
            written[key] = part
    except TypeError:
        return parts
    return written


def _leaf(leaf: Any) -> Hashable:
    if _has_no_shape(leaf):
        return (type(leaf), id(leaf))
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad)
    if isinstance(leaf, np.ndarray):
        return (np.ndarray, leaf.shape, leaf.dtype.str, leaf.strides)
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), repr(leaf))
    return (type(leaf), leaf)


def _has_no_shape(leaf: Any) -> bool:
    """Say whether this is a nested tensor of the older layout, which says nothing of its sides."""
    return isinstance(leaf, Tensor) and leaf.is_nested and leaf.layout is torch.strided


def not_looked_into(batch: tuple[Any, ...]) -> Any:
    """Give a part of a batch that is only the same where it is the very same object; None where none is.

    >>> class Pair: ...
    >>> pair = Pair()
    >>> not_looked_into((torch.zeros(1), {"a": 1}, pair)) is pair, not_looked_into((torch.zeros(1), "word"))
    (True, None)
    """
    for leaf in leaves_of(batch):
        plain = isinstance(leaf, Tensor | np.ndarray | type) or leaf is None
        is_own = not plain and getattr(type(leaf), "__eq__", None) is object.__eq__
        if is_own or _has_no_shape(leaf):
            return leaf
    return None


def tensors_of(batch: tuple[Any, ...]) -> list[Tensor]:
    """Give the tensors of a batch, in order."""
    if all(type(leaf) is Tensor for leaf in batch):
        return list(batch)
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]


def same_form(inputs: Sequence[Tensor]) -> Callable[..., bool]:
    """Give what says of as many values whether they are tensors of exactly the form of these.

    >>> fits = same_form([torch.zeros(2, 3), torch.zeros(2)])
    >>> fits(torch.ones(2, 3), torch.ones(2)), fits(torch.ones(3, 2), torch.ones(2)), fits("a", "b")
    (True, False, False)
    """
    try:
        # What torch's compiler asks of its inputs, in one call; in Python it takes five times as long.
        guards = torch._C._dynamo.guards.TensorGuards(
            *inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        if guards.check(*inputs):
            check: Callable[..., bool] = guards.check
            return check
    except (AttributeError, TypeError, ValueError):
        pass
    forms = [_leaf(leaf) for leaf in inputs]
    return lambda *given: [_leaf(leaf) if type(leaf) is Tensor else None for leaf in given] == forms


class Samples(int):
    """How many samples a batch has, told by who knows it: the last part of a batch, for the body alone.

    As part of the batch it is part of its signature, so no recording is replayed with another weight.
    """


def num_samples(batch: tuple[Any, ...]) -> int:
    """Give the samples that were told, else the leading length of the first tensor; 1 where there is none.

    >>> num_samples((torch.zeros(32, 3), torch.zeros(32)))
    32
    >>> num_samples((torch.zeros(7, 32, 3), torch.zeros(32), Samples(32)))
    32
    """
    if batch and type(batch[-1]) is Samples:
        return int(batch[-1])
    leaves = batch if batch and type(batch[0]) is Tensor else leaves_of(batch)
    return next(_lengths(leaves), 1)


def without_count(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give the batch as the step function is to see it."""
    return batch[:-1] if batch and type(batch[-1]) is Samples else batch


def leading_lengths(batch: tuple[Any, ...]) -> list[int]:
    """Give the leading lengths of the tensors and arrays of a batch, each once, that of the first one first.

    >>> leading_lengths((torch.zeros(4, 3), torch.zeros(4), torch.zeros(9)))
    [4, 9]
    """
    leaves = batch if all(type(leaf) is Tensor for leaf in batch) else leaves_of(batch)
    return list(dict.fromkeys(_lengths(leaves)))


def _lengths(leaves: Iterable[Any]) -> Iterator[int]:
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            yield int(leaf.size(0))
        elif isinstance(leaf, np.ndarray) and leaf.ndim > 0:
            yield int(leaf.shape[0])


def unclear_samples(lengths: Sequence[int]) -> str:
    """Say what a batch weighs whose tensors differ in their leading lengths, and how to tell.

    >>> unclear_samples([7, 4])
    'the first tensor of a batch has 7 rows and others have 4; it weighs as 7 samples, unless told otherwise'
    """
    others = ", ".join(map(str, lengths[1:]))
    return (
        f"the first tensor of a batch has {lengths[0]} rows and others have {others}; "
        f"it weighs as {lengths[0]} samples, unless told otherwise"
    )


def why_not_by_rows(batch: tuple[Any, ...]) -> str | None:
    """Say why a batch cannot be cut or filled along its samples; None where every tensor has a row for each.

    >>> why_not_by_rows((torch.zeros(7, 4, 3), torch.zeros(4), Samples(4)))
    'it has 4 samples, and tensors of it have 7 rows'
    """
    samples, lengths = num_samples(batch), leading_lengths(batch)
    if not lengths and samples > 1:
        return f"it has {samples} samples, and no tensor with rows"
    others = [length for length in lengths if length != samples]
    if not others:
        return None
    return f"it has {samples} samples, and tensors of it have {' and '.join(map(str, others))} rows"


def pieces_of(batch: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Cut a batch into at most `count` parts along its samples; what has no rows goes to every part.

    >>> [part[0].tolist() for part in pieces_of((torch.arange(5), "name"), 2)]
    [[0, 1, 2], [3, 4]]
    """
    total = num_samples(batch)
    size = max(1, -(-total // count))

    def cut(start: int) -> tuple[Any, ...]:
        part: tuple[Any, ...] = mapped(
            lambda leaf: leaf[start : start + size] if leaf.ndim > 0 else leaf, batch
        )
        return part

    return [cut(start) for start in range(0, total, size)] or [batch]


def static_copy(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy a batch into tensors of its own, keeping the strides; a tensor that is there twice stays one."""
    made: dict[int, Any] = {}

    def copy_of(leaf: Any) -> Any:
        if id(leaf) not in made:
            made[id(leaf)] = _blank(leaf).copy_(leaf.detach()) if isinstance(leaf, Tensor) else leaf.copy("K")
        return made[id(leaf)]

    copied: tuple[Any, ...] = mapped(copy_of, batch)
    return copied


def _blank(leaf: Tensor) -> Tensor:
    """Give a tensor that lies in memory as this one does, as far as it can be written to."""
    if leaf.layout is not torch.strided:
        return torch.empty_like(leaf)
    if any(step == 0 and length > 1 for step, length in zip(leaf.stride(), leaf.shape)):
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def refill(static: list[Tensor], batch: Sequence[Tensor]) -> None:
    """Write a new batch into the static tensors, in one call."""
    with torch.no_grad():
        torch._foreach_copy_(static, batch, non_blocking=True)  # type: ignore[arg-type]
