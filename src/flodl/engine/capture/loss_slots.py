"""Reusable tensors for losses, reused once nothing refers to them.

Creating and freeing a tensor costs the host more than everything else about handing over a batch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..batch.signature import same_layout

# References to a tensor besides Python's: by torch itself (a gradient, or DLPack), by an alias of its memory.
# If torch does not provide these counts, no tensor is reused.
USES_BY_TORCH: Callable[[Tensor], int] | None = getattr(Tensor, "_use_count", None)
USES_OF_STORAGE: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class LossSlots:
    """Scalar tensors, and a label for each of them.

    >>> slots = LossSlots([0, 8], torch.device("cpu"))
    >>> held, dropped = [tensor for tensor, _ in slots.entries]
    >>> address = dropped.data_ptr()
    >>> del dropped
    >>> slots.renew(), slots.entries[0][0] is held, slots.entries[1][0].data_ptr() == address
    (True, False, True)
    >>> slots.renew()
    False
    """

    def __init__(self, labels: Sequence[int], device: torch.device) -> None:
        self._labels = labels
        self._device = device
        self._tensors = [self._new() for _ in labels]
        self._fits = same_layout(self._tensors)
        self._count_references()

    @property
    def addresses(self) -> list[int]:
        """The data pointers of the tensors."""
        return [tensor.data_ptr() for tensor in self._tensors]

    def renew(self) -> bool:
        """Replace the tensors that are still referenced or were changed; return whether there were any."""
        tensors, held = self._tensors, self._held()
        if not self._fits(*tensors) or any(map(vars, tensors)):
            tensors[:] = [self._new() for _ in tensors]
        elif held != self._unused:
            for index, (now, then) in enumerate(zip(zip(*held), zip(*self._unused))):
                if now != then:
                    tensors[index] = self._new()
        else:
            return False
        self._count_references()
        return True

    def _new(self) -> Tensor:
        return torch.empty((), dtype=torch.float32, device=self._device)

    def _count_references(self) -> None:
        self.entries = [*zip(self._tensors, self._labels)]
        memory = [tensor.untyped_storage() for tensor in self._tensors]
        # Both at once: a storage handle without its storage is dangling.
        self._storages, self._handles = memory, [part._cdata for part in memory]
        self._unused = self._held()

    def _held(self) -> list[list[object]]:
        """Return the reference counts and the data pointer of each tensor."""
        tensors = self._tensors
        if USES_BY_TORCH is None or USES_OF_STORAGE is None:
            return [[object() for _ in tensors]]
        by_python = map(sys.getrefcount, tensors), map(sys.getrefcount, self._storages)
        by_others = map(USES_BY_TORCH, tensors), map(USES_OF_STORAGE, self._handles)
        weakly, where = map(weakref.getweakrefcount, tensors), map(Tensor.data_ptr, tensors)
        return [[*each] for each in (*by_python, *by_others, weakly, where)]
