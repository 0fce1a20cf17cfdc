"""A snapshot of everything that a step reaches and may change, restored after the step was rerun."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flodl.core.interrupts import uninterrupted

from .reachable import Reachable
from .saved_values import SavedTensor, data_pointer, save

T = TypeVar("T")


class ReachableState:
    """Tensors, gradients, attributes, containers, closures, globals and generators that a step reaches.

    The model is searched first, so that its values can be distinguished from those found elsewhere.

    >>> model = nn.Linear(2, 1)
    >>> model.calls, model.seen, model.hidden = 1, ["a"], torch.ones(2)
    >>> saved = ReachableState(model)
    >>> model.calls, model.new = 2, True
    >>> model.seen.append("b"), model.hidden.zero_()
    (None, tensor([0., 0.]))
    >>> saved.restore()
    >>> model.calls, model.seen, model.hidden, hasattr(model, "new")
    (1, ['a'], tensor([1., 1.]), False)
    """

    def __init__(
        self,
        model: nn.Module,
        others: Iterable[Any] = (),
        *,
        exclude: Iterable[Any] = (),
        copied: Collection[Tensor] = (),
        copy_large: Collection[Tensor] = (),
    ) -> None:
        excluded, elsewhere, large = list(exclude), {*map(id, copied)}, {*map(id, copy_large)}
        in_model = Reachable([model], exclude=excluded)
        outside = Reachable(others, exclude=[*excluded, *in_model])
        self.iterators = [*in_model.iterators, *outside.iterators]
        self._saved = {key: save(value, elsewhere, large) for key, value in in_model.items()}
        self._of_model = list(self._saved.values())
        self._saved.update({key: save(value, elsewhere, large) for key, value in outside.items()})

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything in place."""
        with uninterrupted():
            for one in self._saved.values():
                one.restore()

    def of_class(self, kind: type[T]) -> list[T]:
        """Return the values of a class."""
        return [one.value for one in self._saved.values() if isinstance(one.value, kind)]

    def written_uncopied(self, later: ReachableState) -> list[Tensor]:
        """Return the tensors that had changed at a later moment and were not copied."""
        pairs = self._tensors_of_both(later)
        return [mine.value for mine, theirs in pairs if mine.needs_copy and mine.differs_from(theirs)]

    def written(self, later: ReachableState) -> list[Tensor]:
        """Return the tensors that were written to, or got a gradient, before a later moment."""
        pairs = self._tensors_of_both(later)
        changed = {id(mine.value) for mine, theirs in pairs if mine.differs_from(theirs)}
        return [m.value for m, _ in pairs if id(m.value) in changed or id(m.grad) in changed]

    def first_moved(self, later: ReachableState) -> Tensor | None:
        """Return a tensor whose memory was replaced before a later moment (`p.data = …`)."""
        pairs = self._tensors_of_both(later)
        return next(
            (
                mine.memory
                for mine, theirs in pairs
                if data_pointer(mine.memory) != data_pointer(theirs.memory)
            ),
            None,
        )

    def drop_unchanged(self, later: ReachableState) -> None:
        """Keep only what differs between both moments: the step changes nothing else, but other code may."""
        both = self._saved.keys() & later._saved.keys()
        same = {key for key in both if not self._saved[key].differs_from(later._saved[key])}
        for moment in (self, later):
            moment._saved = {key: one for key, one in moment._saved.items() if key not in same}

    def persistent_histories(self, later: ReachableState) -> list[Tensor]:
        """Return the model's tensors with an autograd history that are still there at a later moment."""
        still = {*map(id, later._histories())}
        return [tensor for tensor in self._histories() if id(tensor) in still]

    def cut_history(self, persistent: Collection[Tensor]) -> None:
        """Detach the values of the model, saved and current, except for these tensors."""
        for one in self._of_model:
            one.cut_history(persistent)

    def _histories(self) -> list[Tensor]:
        return [one.value for one in self._of_model if isinstance(one, SavedTensor) and one.has_history]

    def _tensors_of_both(self, later: ReachableState) -> list[tuple[SavedTensor, SavedTensor]]:
        pairs = ((one, later._saved.get(key)) for key, one in self._saved.items())
        return [(a, b) for a, b in pairs if isinstance(a, SavedTensor) and isinstance(b, SavedTensor)]
