"""A stable description of any value or function, to be hashed. Every word of it enters the hash."""

from __future__ import annotations

import dis
import enum
import functools
import types
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from flodl.core.contents.objects import attributes_of

from .class_code import class_constants, members_read, method_words

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, enum.Enum)


class Level(enum.IntEnum):
    """What a word describes: the structure, the code of a function, or the code of a class of the user."""

    STRUCTURE = 0
    FUNCTIONS = 1
    CLASSES = 2


class Description:
    """Collect words that describe values; a value without a stable description is described by its type.

    >>> def words(value):
    ...     description = Description()
    ...     description.value(value)
    ...     return description.words
    >>> words(lambda x: x * 2) == words(lambda x: x * 2), words(lambda x: x * 2) == words(lambda x: x * 3)
    (True, False)
    """

    def __init__(self) -> None:
        self._words: list[tuple[Level, str]] = []
        self._level = Level.STRUCTURE
        self._open: set[int] = set()
        self._class_words: dict[type, list[str]] = {}
        self._class_constants: dict[type, dict[str, str]] = {}

    @property
    def words(self) -> list[str]:
        """All words so far."""
        return [word for _, word in self._words]

    def words_up_to(self, level: Level) -> list[str]:
        """Return the words without those of higher levels, such as the code of classes."""
        return [word for own, word in self._words if own <= level]

    def add(self, word: str) -> None:
        """Add one word."""
        self._words.append((self._level, word))

    def module(self, module: nn.Module) -> None:
        """Describe a module."""
        self.add(_qualified(type(module)))

    def value(self, value: Any) -> None:
        """Describe a value; a value that contains itself is described once."""
        if isinstance(value, _PLAIN):
            self.add(repr(value))
        elif isinstance(value, torch.Tensor):
            self.add(f"tensor {tuple(value.shape)}")
        elif id(value) in self._open:
            self.add("itself")
        else:
            self._open.add(id(value))
            self._structured(value)
            self._open.discard(id(value))

    def class_code(self, kind: type, entries: tuple[str, ...], stored: Collection[str] = ()) -> None:
        """Describe the methods of a class of the user that a call runs, beginning with `entries`.

        The values of the class that they read follow, without those that the object itself has, `stored`.
        """
        with self.at(Level.CLASSES):
            if kind not in self._class_words:
                self._class_words[kind] = method_words(kind, entries)
                self._class_constants[kind] = class_constants(kind, entries)
            for word in self._class_words[kind]:
                self.add(word)
            for name, described in self._class_constants[kind].items():
                if name.partition(".")[0] not in stored:
                    self.add(f"constant {name} {described}")

    @contextmanager
    def at(self, level: Level) -> Iterator[None]:
        """Add words at a level, at least."""
        before, self._level = self._level, max(self._level, level)
        try:
            yield
        finally:
            self._level = before

    def _structured(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            self.module(value)
        elif isinstance(value, tuple | list):
            self._several(type(value).__name__, *value)
        elif isinstance(value, set | frozenset):
            self._several(type(value).__name__, *sorted(value, key=repr))
        elif isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
            self._several("dict", *(part for item in items for part in item))
        elif isinstance(value, functools.partial):
            self._several("partial", value.func, value.args, value.keywords)
        elif isinstance(value, types.MethodType):
            self._several("method", value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif hasattr(value, "__qualname__"):
            self.add(_qualified(value))
        else:
            self._object(value)

    def _several(self, kind: str, *values: Any) -> None:
        self.add(f"{kind} {len(values)}")
        for value in values:
            self.value(value)

    def _object(self, value: Any) -> None:
        self.add(_qualified(type(value)))
        self.class_code(type(value), ("__call__",), attributes_of(value))
        if hasattr(value, "__dict__"):
            self.value({name: item for name, item in vars(value).items() if not name.startswith("_")})
        elif "__reduce__" in vars(type(value)):
            # For example operator.itemgetter(0): use what pickle would store.
            self._several("made", *value.__reduce__()[1:3])

    def _function(self, function: types.FunctionType) -> None:
        """Describe a Python function by its code, so that two lambdas differ if their bodies differ."""
        with self.at(Level.FUNCTIONS):
            self._code(function.__code__, function)
            for word in members_read(function):
                self.add(word)
        self._several("defaults", function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:
                self.add("empty cell")

    def _code(self, code: types.CodeType, function: types.FunctionType) -> None:
        self.add(f"code {code.co_code.hex()} {code.co_names}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, function)
            else:
                self.value(constant)
        loaded = {op.argval for op in dis.get_instructions(code) if op.opname == "LOAD_GLOBAL"}
        for name in sorted(loaded & function.__globals__.keys()):
            self._global(function.__globals__[name], function)

    def _global(self, value: Any, function: types.FunctionType) -> None:
        """Describe a global that a function reads; a function of another module is described by its name."""
        if isinstance(value, types.FunctionType) and value.__module__ != function.__module__:
            self.add(_qualified(value))
        elif isinstance(value, types.ModuleType):
            self.add(value.__name__)
        else:
            self.value(value)


def _qualified(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{value.__qualname__}"
