"""What a step reaches and may change, as it was at one moment, to be put back after it ran once more."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from types import CellType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flodl.core.interrupts import uninterrupted

from ..device.autograd_history import without_history
from ..device.tensors import same_bits
from .reachable import ITEMS, RANDOM, Binding, Reachable, plain_attributes

# Larger tensors are copied once it was seen that the step writes to them, larger arrays not at all.
SMALL_BYTES = 1 << 20
ARRAY_BYTES = 16 << 20


class ReachableState:
    """Tensors and their gradients, attributes, containers, closures, globals and generators around a step.

    What modules of the model keep comes first, so that it is told from what others hold.

    >>> model = nn.Linear(2, 1)
    >>> model.calls, model.seen, model.hidden = 1, ["a"], torch.ones(2)
    >>> kept = ReachableState(model)
    >>> model.calls, model.new = 2, True
    >>> model.seen.append("b"), model.hidden.zero_()
    (None, tensor([0., 0.]))
    >>> kept.restore()
    >>> model.calls, model.seen, model.hidden, hasattr(model, "new")
    (1, ['a'], tensor([1., 1.]), False)
    """

    def __init__(
        self,
        model: nn.Module,
        others: Iterable[Any] = (),
        *,
        without: Iterable[Any] = (),
        copied: Collection[Tensor] = (),
        wanted: Collection[Tensor] = (),
    ) -> None:
        aside, elsewhere, large = list(without), {*map(id, copied)}, {*map(id, wanted)}
        inside = Reachable([model], without=aside)
        around = Reachable(others, without=[*aside, *inside])
        self.iterators = [*inside.iterators, *around.iterators]
        self._kept = {key: _kept(value, elsewhere, large) for key, value in inside.items()}
        self._of_model = list(self._kept.values())
        self._kept.update({key: _kept(value, elsewhere, large) for key, value in around.items()})

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was."""
        with uninterrupted():
            for one in self._kept.values():
                one.put_back()

    def written_uncopied(self, later: ReachableState) -> list[Tensor]:
        """Give the tensors that changed until a later moment and of which no copy was kept."""
        pairs = self._tensors_of_both(later)
        return [mine.value for mine, theirs in pairs if mine.needs_copy and mine.differs_from(theirs)]

    def written(self, later: ReachableState) -> list[Tensor]:
        """Give the tensors that were written to, or got a gradient, until a later moment."""
        pairs = self._tensors_of_both(later)
        changed = {id(mine.value) for mine, theirs in pairs if mine.differs_from(theirs)}
        return [m.value for m, _ in pairs if id(m.value) in changed or id(m.grad) in changed]

    def first_moved(self, later: ReachableState) -> Tensor | None:
        """Give a tensor whose memory is another one at a later moment (`p.data = …`)."""
        pairs = self._tensors_of_both(later)
        return next(
            (mine.memory for mine, theirs in pairs if _place(mine.memory) != _place(theirs.memory)), None
        )

    def drop_unchanged(self, later: ReachableState) -> None:
        """Keep at both moments only what differs: the step changes nothing else, others may meanwhile."""
        both = self._kept.keys() & later._kept.keys()
        same = {key for key in both if not self._kept[key].differs_from(later._kept[key])}
        for moment in (self, later):
            moment._kept = {key: one for key, one in moment._kept.items() if key not in same}

    def lasting(self, later: ReachableState) -> list[Tensor]:
        """Give what the model kept with a history before, and still does at a later moment."""
        still = {*map(id, later._histories())}
        return [tensor for tensor in self._histories() if id(tensor) in still]

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        """Let what the model keeps go of all histories but of those tensors; nor is one put back later."""
        for one in self._of_model:
            one.cut_history(lasting)

    def _histories(self) -> list[Tensor]:
        return [one.value for one in self._of_model if isinstance(one, _Tensor) and one.has_history]

    def _tensors_of_both(self, later: ReachableState) -> list[tuple[_Tensor, _Tensor]]:
        pairs = ((one, later._kept.get(key)) for key, one in self._kept.items())
        return [(a, b) for a, b in pairs if isinstance(a, _Tensor) and isinstance(b, _Tensor)]


class _Kept(ABC):
    """One thing as it was."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def put_back(self) -> None:
        """Make it what it was, touching nothing where it is."""

    @abstractmethod
    def differs_from(self, later: Any) -> bool:
        """Say whether it was another one at a later moment."""

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        """Hold no history of a step."""
        self.value = without_history(self.value, lasting)


class _Tensor(_Kept):
    def __init__(self, value: Tensor, elsewhere: Collection[int], wanted: Collection[int]) -> None:
        super().__init__(value)
        self.has_history = value.grad_fn is not None
        self.grad = value.grad if value.is_leaf else None
        self.memory = value.detach()
        self._version = None if value.is_inference() else value._version
        self._copy: Tensor | None = None
        self.needs_copy = False
        if id(value) not in elsewhere and self._version is not None and value.layout is torch.strided:
            small = value.numel() * value.element_size() <= SMALL_BYTES
            self.needs_copy = not small and id(value) not in wanted
            self._copy = None if self.needs_copy else value.detach().clone()

    def put_back(self) -> None:
        value = self.value
        if value.is_leaf and value.grad is not self.grad:
            value.grad = self.grad
        if _place(value) != _place(self.memory):
            value.data = self.memory
        if self._copy is not None and not same_bits(self.memory, self._copy):
            self.memory.copy_(self._copy)

    def differs_from(self, later: _Tensor) -> bool:
        if self.grad is not later.grad or _place(self.memory) != _place(later.memory):
            return True
        if self._version != later._version:
            return True
        # Written to through `.data`, which does not count.
        return self._copy is not None and later._copy is not None and not same_bits(self._copy, later._copy)


class _Items(_Kept):
    """A list, a dictionary or a set, of whatever kind."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._items = copy.copy(value)

    def put_back(self) -> None:
        if not _same_items(self.value, self._items):
            self.value.clear()
            (self.value.extend if isinstance(self.value, _ORDERED) else self.value.update)(self._items)

    def differs_from(self, later: _Items) -> bool:
        return not _same_items(self._items, later._items)

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        without_history(self._items, lasting)
        without_history(self.value, lasting)


class _Attributes(_Kept):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._attributes = dict(plain_attributes(value))

    def put_back(self) -> None:
        now, kept = plain_attributes(self.value), self._attributes
        if not _same_items(now, kept):
            for name in now.keys() - kept.keys():
                del self.value.__dict__[name]
            self.value.__dict__.update(kept)

    def differs_from(self, later: _Attributes) -> bool:
        return not _same_items(self._attributes, later._attributes)

    def cut_history(self, lasting: Collection[Tensor]) -> None:
        for attributes in (self._attributes, self.value.__dict__):
            for name in attributes.keys() & self._attributes.keys():
                attributes[name] = without_history(attributes[name], lasting)


class _Name(_Kept):
    """A variable of a closure or of a module of Python."""

    def __init__(self, value: CellType | Binding) -> None:
        super().__init__(value)
        self._bound = self._now()

    def _now(self) -> Any:
        if isinstance(self.value, Binding):
            return self.value.names.get(self.value.name)
        try:
            return self.value.cell_contents
        except ValueError:  # it has no value yet
            return _NO_VALUE

    def put_back(self) -> None:
        if self._now() is self._bound:
            return
        if isinstance(self.value, Binding):
            self.value.names[self.value.name] = self._bound
        elif self._bound is _NO_VALUE:
            del self.value.cell_contents
        else:
            self.value.cell_contents = self._bound

    def differs_from(self, later: _Name) -> bool:
        return self._bound is not later._bound


class _Random(_Kept):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._state = _state_of(value)

    def put_back(self) -> None:
        value = self.value
        if isinstance(value, torch.Generator):
            value.set_state(self._state)
        elif isinstance(value, random.Random):
            value.setstate(self._state)
        elif isinstance(value, np.random.RandomState):
            value.set_state(self._state)
        else:
            value.bit_generator.state = self._state

    def differs_from(self, later: _Random) -> bool:
        if isinstance(self.value, torch.Generator):
            return not torch.equal(self._state, later._state)
        return repr(self._state) != repr(later._state)


class _Array(_Kept):
    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        super().__init__(value)
        small = value.nbytes <= ARRAY_BYTES and not value.dtype.hasobject
        self._copy = value.copy() if small and value.flags.writeable else None

    def put_back(self) -> None:
        if self._copy is not None and self.value.tobytes() != self._copy.tobytes():
            self.value[...] = self._copy

    def differs_from(self, later: _Array) -> bool:
        if self._copy is None or later._copy is None:
            return False
        return self._copy.tobytes() != later._copy.tobytes()


_ORDERED = (list, ITEMS[1])
_NO_VALUE = object()


def _kept(value: Any, elsewhere: Collection[int], wanted: Collection[int]) -> _Kept:
    if isinstance(value, Tensor):
        return _Tensor(value, elsewhere, wanted)
    if isinstance(value, RANDOM):
        return _Random(value)
    if isinstance(value, np.ndarray):
        return _Array(value)
    if isinstance(value, CellType | Binding):
        return _Name(value)
    return _Items(value) if type(value) in ITEMS else _Attributes(value)


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def _same_items(one: Any, other: Any) -> bool:
    """Say whether two containers hold the same things in the same order."""
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool(one == other)
    if isinstance(one, dict):
        return all(a is b or (type(a) is str and a == b) for a, b in zip(one, other)) and all(
            a is b for a, b in zip(one.values(), other.values())
        )
    return all(a is b for a, b in zip(one, other))


def _state_of(source: Any) -> Any:
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.RandomState):
        return source.get_state(legacy=False)
    return copy.deepcopy(source.bit_generator.state)
