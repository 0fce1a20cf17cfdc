"""Describing any setting or function in stable words, so that two of them can be compared by hash."""

from __future__ import annotations

import dis
import enum
import functools
import types
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, enum.Enum)


class Wording:
    """Collect words about values; what has no stable description counts by its type.

    >>> def words(value):
    ...     wording = Wording()
    ...     wording.value(value)
    ...     return wording.words
    >>> words(lambda x: x * 2) == words(lambda x: x * 2), words(lambda x: x * 2) == words(lambda x: x * 3)
    (True, False)
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self._open: set[int] = set()

    def say(self, word: str) -> None:
        """Add one word."""
        self.words.append(word)

    def module(self, module: nn.Module) -> None:
        """Describe a module."""
        self.say(_qualified(type(module)))

    def value(self, value: Any) -> None:
        """Describe a value; one that contains itself is described once."""
        if isinstance(value, _PLAIN):
            self.say(repr(value))
        elif isinstance(value, torch.Tensor):
            self.say(f"tensor {tuple(value.shape)}")
        elif id(value) in self._open:
            self.say("itself")
        else:
            self._open.add(id(value))
            self._structured(value)
            self._open.discard(id(value))

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
            self.say(_qualified(value))
        else:
            self._object(value)

    def _several(self, kind: str, *values: Any) -> None:
        self.say(f"{kind} {len(values)}")
        for value in values:
            self.value(value)

    def _object(self, value: Any) -> None:
        self.say(_qualified(type(value)))
        if hasattr(value, "__dict__"):
            self.value({name: held for name, held in vars(value).items() if not name.startswith("_")})
        elif "__reduce__" in vars(type(value)):
            # Such as operator.itemgetter(0): what pickle would keep of it.
            self._several("made", *value.__reduce__()[1:3])

    def _function(self, function: types.FunctionType) -> None:
        """Describe a Python function by what it does, so that two lambdas differ when their bodies do."""
        self._code(function.__code__, function)
        self._several("defaults", function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:
                self.say("empty cell")

    def _code(self, code: types.CodeType, function: types.FunctionType) -> None:
        self.say(f"code {code.co_code.hex()} {code.co_names}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, function)
            else:
                self.value(constant)
        loaded = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
        for name in sorted(loaded & function.__globals__.keys()):
            self._global(function.__globals__[name], function)

    def _global(self, value: Any, function: types.FunctionType) -> None:
        """Describe what a function reads from its file; what comes from another file counts by its name."""
        if isinstance(value, types.FunctionType) and value.__module__ != function.__module__:
            self.say(_qualified(value))
        elif isinstance(value, types.ModuleType):
            self.say(value.__name__)
        else:
            self.value(value)


def _qualified(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{value.__qualname__}"
