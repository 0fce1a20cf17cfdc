"""The values that the graphs of a model carry from call to call, as a step sees them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.observe import CarriedValues

from ..batch.signature import Signature
from ..batch.tree import static_copy

# A state that grows has a different form in every step; forget the earlier ones.
_MAX_FORMS = 64


class Carried:
    """Where graphs keep what they carry, the form of it, and which forms a step keeps.

    A recording fits one form: structure, shapes, dtypes and strides. It feeds back what it carries, so it can
    start from a form only if the step ends with the same one. Without carried values, as after a reset, a
    step starts from the initial ones, which is a different program.

    >>> hidden = CarriedValues((), 1)
    >>> carried = Carried([hidden])
    >>> unset = carried.form()
    >>> hidden.carried, hidden.batch = (torch.zeros(2, 3),), 2
    >>> carried.note_step_from(unset)
    >>> carried.is_kept(unset), carried.is_kept(carried.form())
    (False, None)
    """

    def __init__(self, holders: Iterable[CarriedValues]) -> None:
        self.holders = list(holders)
        # For each form that a step started from, whether it ended with the same one.
        self._kept: dict[Signature, bool] = {}

    def __getstate__(self) -> dict[str, object]:
        # Some forms refer to objects by id.
        return {"holders": self.holders, "_kept": {}}

    def form(self) -> Signature:
        """Return what must stay equal for a recording to fit the values carried now."""
        return tuple(_form(holder) for holder in self.holders)

    def make_dense(self) -> None:
        """Copy tensors on devices whose elements have gaps between them or overlap.

        Selecting what to restore after an update makes them dense. Without this, those of a micro-batch
        without an update would have other strides, and thus another form.
        """
        for holder in self.holders:
            if not all(map(_is_dense, pytree.tree_leaves(holder.carried))):
                dense = pytree.tree_map_only(
                    Tensor, lambda one: one if _is_dense(one) else one.clone(), holder.carried
                )
                holder.carried = dense

    def note_step_from(self, form: Signature) -> None:
        """Note whether the step that has just ended, and started from a form, kept it."""
        if form in self._kept:
            return
        if len(self._kept) >= _MAX_FORMS:
            self._kept.clear()
        self._kept[form] = self.form() == form

    def is_kept(self, form: Signature) -> bool | None:
        """Return whether steps that start from a form end with the same one; None if that is not known."""
        return self._kept.get(form)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are carried now."""
        for holder in self.holders:
            yield from tensors_in(holder.carried)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the same tensors without their autograd history, by name."""
        return {f"carried value {index}": one.detach() for index, one in enumerate(self.tensors())}

    def state(self) -> list[dict[str, Any]]:
        """Return a copy of what each graph carries, and of how many samples.

        >>> hidden = CarriedValues((), 1)
        >>> Carried([hidden]).state()
        [{'values': (None,), 'batch': None}]
        """
        return [{"values": copied(holder.carried), "batch": holder.batch} for holder in self.holders]

    def load(self, state: Iterable[Mapping[str, Any]], device: torch.device) -> None:
        """Continue from a `state` that `check_carried` has checked."""
        for holder, saved in zip(self.holders, state):
            moved = pytree.tree_map_only(Tensor, lambda one: one.to(device), tuple(saved["values"]))
            holder.carried, holder.batch = copied(moved), saved["batch"]

    def copy_as_recorded(self) -> None:
        """Replace the carried values by copies with the strides that a recording reads."""
        for holder in self.holders:
            holder.carried = copied(holder.carried)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a nested value."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def copied(value: Any) -> Any:
    """Return a nested value with a copy of each tensor, without history, in which no elements overlap."""
    return pytree.tree_map_only(Tensor, lambda leaf: static_copy((leaf,))[0], value)


def _is_dense(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor) or leaf.device.type == "cpu" or leaf.layout is not torch.strided:
        return True
    return leaf.is_contiguous() or torch.empty_like(leaf, device="meta").stride() == leaf.stride()


def _form(holder: CarriedValues) -> Hashable:
    if all(value is None or type(value) is Tensor for value in holder.carried):
        return (holder.batch, *map(_leaf_form, holder.carried))
    leaves, structure = pytree.tree_flatten(holder.carried)
    # As text: a form may be sent to another process.
    return (holder.batch, str(structure), *map(_leaf_form, leaves))


def _leaf_form(leaf: Any) -> Hashable:
    if type(leaf) is Tensor and leaf.layout is torch.strided and not leaf.is_nested:
        return (leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad)
    is_constant = leaf is None or isinstance(leaf, int | float | str)
    return (type(leaf), leaf if is_constant else id(leaf))
