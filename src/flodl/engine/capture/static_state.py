"""Carried values in static tensors, which a recording reads and feeds back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.observe import CarriedValues, mark_overwritten

from ..batch.tree import refill
from ..errors import NotCapturable
from ..program.carried import Carried, copied, tensors_in
from ..program.undo import ForwardUndo


class StaticState:
    """Static tensors for the values that are carried now; all recordings for states of this form share them.

    A region that is recorded starts with a copy of them (`begin`), since a tag or a returned value may be the
    value of the previous call, and ends by writing the new values to them (`feed_back`). Before a replay,
    `load` copies values into them that others have set since the last one; after it, `show` lets graphs refer
    to them.

    An update that is skipped restores the values from the start of its window. If it is not part of the same
    recording, they are overwritten by then: `keep_start` copies them.
    """

    def __init__(self, carried: Carried, undo: ForwardUndo, device: torch.device) -> None:
        self._undo = undo
        self._holders = carried.holders
        self._batches = [holder.batch for holder in self._holders]
        if elsewhere := [one.device for one in carried.tensors() if one.device != device]:
            raise NotCapturable(
                f"a carried value is on {elsewhere[0]}, and the model on {device}; carry it on the device"
            )
        shown: list[tuple[Any, ...]] = [copied(holder.carried) for holder in self._holders]
        self._tensors = tensors_in(shown)
        self._start = [copied(values) for values in shown]
        for one in self._tensors:
            mark_overwritten(one)
        # What each graph refers to between replays.
        self.pairs: list[tuple[CarriedValues, tuple[Any, ...]]] = [*zip(self._holders, shown)]

    def begin(self) -> None:
        """Copy the static tensors, as the start of the recording, and let graphs continue the copies."""
        self._assign([copied(values) for _, values in self.pairs])

    @torch.no_grad()
    def keep_start(self, *, opens: bool) -> None:
        """Keep the values at the start of a window, as part of the recording, for a skipped update."""
        if opens:
            refill(tensors_in(self._start), self._tensors)
        self._refer_to_start([holder.carried for holder in self._holders])

    def feed_back(self) -> None:
        """Write the new values to the static tensors, as the end of the recording."""
        self.check()
        _write(self._tensors, tensors_in([holder.carried for holder in self._holders]))
        self.show()

    def check(self) -> None:
        """Raise if the region has changed the form of what it carries."""
        for (holder, values), batch in zip(self.pairs, self._batches):
            if holder.batch != batch or _shapes(holder.carried) != _shapes(values):
                raise NotCapturable(
                    f"it carries {_shapes(holder.carried)[0]} to the next call and continues "
                    f"{_shapes(values)[0]}; a recording feeds back values of the same shape"
                )

    def load(self) -> None:
        """Copy values that were set since the last replay into the static tensors."""
        for holder, shown in self.pairs:
            if holder.carried is not shown:
                _write(self._tensors, tensors_in([one.carried for one in self._holders]))
                return

    def show(self, *, starts: bool = False) -> None:
        """Let graphs refer to the values that a replay has written.

        If it `starts` a window whose update comes later, a skipped update restores those from its start.
        """
        shown = [values for _, values in self.pairs]
        if starts:
            self._refer_to_start(shown)
        else:
            self._assign(shown)

    def _refer_to_start(self, after: Sequence[tuple[Any, ...]]) -> None:
        self._assign(self._start)
        self._undo.keep_carried()
        self._assign(after)

    def _assign(self, values: Sequence[tuple[Any, ...]]) -> None:
        for holder, one, batch in zip(self._holders, values, self._batches):
            holder.carried, holder.batch = one, batch


@torch.no_grad()
def _write(targets: list[Tensor], values: list[Tensor]) -> None:
    """Write values to tensors in one call; values may share memory with other targets."""
    pairs = [(to, value) for to, value in zip(targets, values, strict=True) if not _is_same(to, value)]
    memory = {to.untyped_storage().data_ptr() for to in targets}
    sources = [
        value.detach().clone() if value.untyped_storage().data_ptr() in memory else value.detach()
        for _, value in pairs
    ]
    refill([to for to, _ in pairs], sources)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and one.stride() == other.stride())


def _shapes(values: Any) -> tuple[list[Any], Any]:
    leaves, structure = pytree.tree_flatten(values)
    found = [(tuple(one.shape), one.dtype) if isinstance(one, Tensor) else one for one in leaves]
    return found, structure
