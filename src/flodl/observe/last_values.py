"""Values that a module stores during a call and that are read after it, on every tier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class LastValues:
    """What a module stored in its last call: the tags of a graph, the traces of a loop.

    Replaying a recording (a CUDA graph) runs no Python, so nothing is stored. Whoever replays it assigns
    `RecordedValues` instead. Every replay overwrites these, so `copied` protects what a reader keeps.

    >>> last = LastValues((torch.zeros(2),))
    >>> last.copied(last.stored[0]) is last.stored[0]
    True
    >>> last.values = RecordedValues(last.values)
    >>> last.copied(last.stored[0]) is last.stored[0]
    False
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    @property
    def stored(self) -> Any:
        """The values themselves; those of a recording are overwritten by its next replay."""
        return self.values.tensors if isinstance(self.values, RecordedValues) else self.values

    def copied(self, value: Any) -> Any:
        """Return a stored value such that no replay changes it."""
        is_recorded = isinstance(self.values, RecordedValues)
        return pytree.tree_map_only(Tensor, torch.clone, value) if is_recorded else value

    def detach(self) -> None:
        """Detach the values from the autograd graph."""
        if not isinstance(self.values, RecordedValues):
            self.values = pytree.tree_map_only(Tensor, torch.Tensor.detach, self.values)


class RecordedValues:
    """Values that a recording writes to in every replay, without their autograd history."""

    # Without a dictionary, a snapshot of what a step reaches does not copy them.
    __slots__ = ("tensors",)

    def __init__(self, values: Any) -> None:
        self.tensors = pytree.tree_map_only(Tensor, torch.Tensor.detach, values)
