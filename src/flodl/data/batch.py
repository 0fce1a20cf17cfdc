"""The form of a batch: one tensor, a tuple of them, or a dictionary with names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core.errors import DataError


@dataclass(frozen=True)
class Form:
    """How the parts of a batch are put together.

    >>> Form("tuple", 2).build(["a", "b"]), Form("dict", 2, ("x", "y")).build(["a", "b"])
    (('a', 'b'), {'x': 'a', 'y': 'b'})
    """

    kind: str
    num_parts: int
    names: tuple[str, ...] = ()

    def build(self, parts: Sequence[Any]) -> Any:
        """Put the parts together."""
        if self.kind == "single":
            return parts[0]
        return dict(zip(self.names, parts)) if self.kind == "dict" else tuple(parts)


def parts_of(batch: Any) -> tuple[Form, list[Any]]:
    """Take a batch, a sample or a source of that form apart."""
    if isinstance(batch, Mapping):
        return Form("dict", len(batch), tuple(map(str, batch))), list(batch.values())
    if isinstance(batch, (tuple, list)):
        return Form("tuple", len(batch)), list(batch)
    return Form("single", 1), [batch]


def named(batch: Any, names: Sequence[str] | None) -> Any:
    """Give the parts of a batch names; of a dictionary, take the parts with these names.

    >>> named((1, 2), ("image", "label")), named({"a": 1, "b": 2, "c": 3}, ("c", "a"))
    ({'image': 1, 'label': 2}, {'c': 3, 'a': 1})
    """
    if names is None:
        return batch
    if isinstance(names, str) or len(set(names)) < len(names):
        raise DataError(f"names={names!r}. Give a list of names, each of them once.")
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise DataError(f"names has {missing[0]!r}, the data have {sorted(map(str, batch))}.")
        return {name: batch[name] for name in names}
    _, parts = parts_of(batch)
    if len(parts) != len(names):
        raise DataError(f"{len(names)} names {list(names)} for {len(parts)} parts. Give one name for each.")
    return dict(zip(names, parts))


def tensors_in(batch: Any) -> list[Tensor]:
    """Give the tensors of a batch of any structure."""
    parts = _plain_parts(batch)
    if parts is not None:
        return parts
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Give the same structure with other tensors.

    >>> import torch
    >>> map_tensors(torch.Tensor.neg, {"x": torch.tensor(1), "more": [torch.tensor(2), "a"]})
    {'x': tensor(-1), 'more': [tensor(-2), 'a']}
    """
    parts = _plain_parts(batch)
    if parts is None:
        return pytree.tree_map_only(Tensor, function, batch)
    made = [function(part) for part in parts]
    if isinstance(batch, dict):
        return dict(zip(batch, made))
    return made[0] if isinstance(batch, Tensor) else type(batch)(made)


def _plain_parts(batch: Any) -> list[Tensor] | None:
    """Give the parts of a batch that is a tensor, or a tuple, list or dictionary of nothing but tensors.

    Most are, and torch's way through any structure takes a tenth of a millisecond each time.
    """
    if isinstance(batch, Tensor):
        return [batch]
    parts = list(batch.values()) if type(batch) is dict else batch
    if type(parts) in (tuple, list) and all(isinstance(part, Tensor) for part in parts):
        return list(parts)
    return None


def num_bytes_of(batch: Any) -> int:
    """Give the memory that the tensors of a batch take.

    >>> import torch
    >>> num_bytes_of({"x": torch.zeros(2, 3), "name": "a"})
    24
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


@dataclass(frozen=True)
class Handed:
    """A batch, the position behind it, and the state of a streaming source there."""

    batch: Any
    position: int
    source_state: Any = None
