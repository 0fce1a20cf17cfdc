"""Single values that a step may change, saved at one moment: tensors, containers, attributes, generators."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Collection
from types import CellType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..device.autograd_history import without_history
from ..device.tensors import same_bits
from .reachable import BYTES, ITEMS, RANDOM, Binding, plain_attributes, slots_of

# Larger tensors are copied only after the step was seen to write to them, larger arrays never.
SMALL_BYTES = 1 << 20
ARRAY_BYTES = 16 << 20


class SavedValue(ABC):
    """One value as it was at one moment."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def restore(self) -> None:
        """Restore it in place; leave it untouched if it did not change."""

    @abstractmethod
    def differs_from(self, later: Any) -> bool:
        """Return whether it had changed at a later moment."""

    def cut_history(self, persistent: Collection[Tensor]) -> None:
        """Detach the saved value from the autograd history of a step."""
        self.value = without_history(self.value, persistent)


class SavedTensor(SavedValue):
    def __init__(self, value: Tensor, copied: Collection[int], copy_large: Collection[int]) -> None:
        super().__init__(value)
        self.has_history = value.grad_fn is not None
        self.grad = value.grad if value.is_leaf else None
        self.memory = value.detach()
        self._version = None if value.is_inference() else value._version
        self._copy: Tensor | None = None
        self.needs_copy = False
        if id(value) not in copied and self._version is not None and value.layout is torch.strided:
            small = value.numel() * value.element_size() <= SMALL_BYTES
            self.needs_copy = not small and id(value) not in copy_large
            self._copy = None if self.needs_copy else value.detach().clone()

    @property
    def is_copied(self) -> bool:
        """Whether its elements can be restored."""
        return self._copy is not None

    def restore(self) -> None:
        value = self.value
        if value.is_leaf and value.grad is not self.grad:
            value.grad = self.grad
        if data_pointer(value) != data_pointer(self.memory):
            value.data = self.memory
        if self._copy is not None and not same_bits(self.memory, self._copy):
            self.memory.copy_(self._copy)

    def differs_from(self, later: SavedTensor) -> bool:
        if self.grad is not later.grad or data_pointer(self.memory) != data_pointer(later.memory):
            return True
        if self._version != later._version:
            return True
        # A write through `.data` does not change the version.
        return self._copy is not None and later._copy is not None and not same_bits(self._copy, later._copy)


class SavedContainer(SavedValue):
    """The items of a list, dictionary, set or similar container."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._items = copy.copy(value)

    def restore(self) -> None:
        if not _same_items(self.value, self._items):
            self.value.clear()
            (self.value.extend if isinstance(self.value, _ORDERED) else self.value.update)(self._items)

    def differs_from(self, later: SavedContainer) -> bool:
        return not _same_items(self._items, later._items)

    def cut_history(self, persistent: Collection[Tensor]) -> None:
        without_history(self._items, persistent)
        without_history(self.value, persistent)


class SavedAttributes(SavedValue):
    """The attributes of an object, a function or a class."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._attributes = dict(plain_attributes(value))

    def restore(self) -> None:
        now, saved = plain_attributes(self.value), self._attributes
        if _same_items(now, saved):
            return
        for name in now.keys() - saved.keys():
            self._delete(name)
        for name, one in saved.items():
            if name not in now or now[name] is not one:
                self._set(name, one)

    def differs_from(self, later: SavedAttributes) -> bool:
        return not _same_items(self._attributes, later._attributes)

    def cut_history(self, persistent: Collection[Tensor]) -> None:
        for name, one in plain_attributes(self.value).items():
            if name in self._attributes and (cut := without_history(one, persistent)) is not one:
                self._set(name, cut)
        self._attributes = {n: without_history(one, persistent) for n, one in self._attributes.items()}

    def _set(self, name: str, one: Any) -> None:
        """Set an attribute without calling a `__setattr__` of the user."""
        if isinstance(self.value, type):
            type.__setattr__(self.value, name, one)
        elif slot := slots_of(self.value).get(name):
            slot.__set__(self.value, one)
        else:
            self.value.__dict__[name] = one

    def _delete(self, name: str) -> None:
        if isinstance(self.value, type):
            type.__delattr__(self.value, name)
        elif slot := slots_of(self.value).get(name):
            slot.__delete__(self.value)
        else:
            del self.value.__dict__[name]


class SavedBytes(SavedValue):
    """The items of a bytearray or an array."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._copy = value[:] if memoryview(value).nbytes <= ARRAY_BYTES else None

    def restore(self) -> None:
        if self._copy is not None and self.value != self._copy:
            self.value[:] = self._copy

    def differs_from(self, later: SavedBytes) -> bool:
        return bool(self._copy != later._copy)


class SavedVariable(SavedValue):
    """The value of a variable of a closure or a Python module."""

    def __init__(self, value: CellType | Binding) -> None:
        super().__init__(value)
        self._value = self._current()

    def _current(self) -> Any:
        if isinstance(self.value, Binding):
            return self.value.names.get(self.value.name)
        try:
            return self.value.cell_contents
        except ValueError:  # the variable is not assigned yet
            return _NO_VALUE

    def restore(self) -> None:
        if self._current() is self._value:
            return
        if isinstance(self.value, Binding):
            self.value.names[self.value.name] = self._value
        elif self._value is _NO_VALUE:
            del self.value.cell_contents
        else:
            self.value.cell_contents = self._value

    def differs_from(self, later: SavedVariable) -> bool:
        return self._value is not later._value


class SavedRandom(SavedValue):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._state = _generator_state(value)

    def restore(self) -> None:
        value = self.value
        if isinstance(value, torch.Generator):
            value.set_state(self._state)
        elif isinstance(value, random.Random):
            value.setstate(self._state)
        elif isinstance(value, np.random.RandomState):
            value.set_state(self._state)
        else:
            value.bit_generator.state = self._state

    def differs_from(self, later: SavedRandom) -> bool:
        if isinstance(self.value, torch.Generator):
            return not torch.equal(self._state, later._state)
        return repr(self._state) != repr(later._state)


class SavedArray(SavedValue):
    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        super().__init__(value)
        small = value.nbytes <= ARRAY_BYTES and not value.dtype.hasobject
        self._copy = value.copy() if small and value.flags.writeable else None

    def restore(self) -> None:
        if self._copy is not None and self.value.tobytes() != self._copy.tobytes():
            self.value[...] = self._copy

    def differs_from(self, later: SavedArray) -> bool:
        if self._copy is None or later._copy is None:
            return False
        return self._copy.tobytes() != later._copy.tobytes()


_ORDERED = (list, ITEMS[1])
_NO_VALUE = object()


def save(value: Any, copied: Collection[int], copy_large: Collection[int]) -> SavedValue:
    """Save a value, given the ids of tensors that are copied elsewhere and of large ones to copy here."""
    if isinstance(value, Tensor):
        return SavedTensor(value, copied, copy_large)
    if isinstance(value, RANDOM):
        return SavedRandom(value)
    if isinstance(value, np.ndarray):
        return SavedArray(value)
    if isinstance(value, BYTES):
        return SavedBytes(value)
    if isinstance(value, CellType | Binding):
        return SavedVariable(value)
    return SavedContainer(value) if type(value) in ITEMS else SavedAttributes(value)


def data_pointer(tensor: Tensor) -> int:
    """Return where the elements of a tensor are stored; 0 for a layout without a single storage."""
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def _same_items(one: Any, other: Any) -> bool:
    """Return whether two containers hold the same objects in the same order."""
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool(one == other)
    if isinstance(one, dict):
        return all(a is b or (type(a) is str and a == b) for a, b in zip(one, other)) and all(
            a is b for a, b in zip(one.values(), other.values())
        )
    return all(a is b for a, b in zip(one, other))


def _generator_state(source: Any) -> Any:
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.RandomState):
        return source.get_state(legacy=False)
    return copy.deepcopy(source.bit_generator.state)
