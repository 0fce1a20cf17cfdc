"""Tensors for losses: given away, and given again once nobody holds them.

To make a tensor and to let go of it costs the host more than all else of handing over a batch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..batch.signature import same_layout

# Who holds a tensor beside Python: torch itself (for a gradient, or DLPack), another tensor over its memory.
# Where torch does not tell, none is given twice.
_BY_TORCH: Callable[[Tensor], int] | None = getattr(Tensor, "_use_count", None)
_BY_MEMORY: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Places:
    """Tensors of one number each, and a label for each of them.

    >>> places = Places([0, 8], torch.device("cpu"))
    >>> held, dropped = [tensor for tensor, _ in places.entries]
    >>> address = dropped.data_ptr()
    >>> del dropped
    >>> places.renew(), places.entries[0][0] is held, places.entries[1][0].data_ptr() == address
    (True, False, True)
    >>> places.renew()
    False
    """

    def __init__(self, labels: Sequence[int], device: torch.device) -> None:
        self._labels = labels
        self._device = device
        self._tensors = [self._new() for _ in labels]
        self._fits = same_layout(self._tensors)
        self._take_stock()

    @property
    def addresses(self) -> list[int]:
        """Where the numbers lie."""
        return [tensor.data_ptr() for tensor in self._tensors]

    def renew(self) -> bool:
        """Replace the tensors that somebody holds or has changed; says whether there were any."""
        tensors, held = self._tensors, self._held()
        if not self._fits(*tensors) or any(map(vars, tensors)):
            tensors[:] = [self._new() for _ in tensors]
        elif held != self._held_by_none:
            for place, (now, then) in enumerate(zip(zip(*held), zip(*self._held_by_none))):
                if now != then:
                    tensors[place] = self._new()
        else:
            return False
        self._take_stock()
        return True

    def _new(self) -> Tensor:
        return torch.empty((), dtype=torch.float32, device=self._device)

    def _take_stock(self) -> None:
        self.entries = [*zip(self._tensors, self._labels)]
        memory = [tensor.untyped_storage() for tensor in self._tensors]
        # Both at once: a name without its memory is the name of nothing.
        self._memory, self._names = memory, [part._cdata for part in memory]
        self._held_by_none = self._held()

    def _held(self) -> list[list[object]]:
        """Count who holds each tensor, and see where its number lies now."""
        tensors = self._tensors
        if _BY_TORCH is None or _BY_MEMORY is None:
            return [[object() for _ in tensors]]
        by_python = map(sys.getrefcount, tensors), map(sys.getrefcount, self._memory)
        by_others = map(_BY_TORCH, tensors), map(_BY_MEMORY, self._names)
        weakly, where = map(weakref.getweakrefcount, tensors), map(Tensor.data_ptr, tensors)
        return [[*each] for each in (*by_python, *by_others, weakly, where)]
